//! 128-bit and 256-bit vectors (LSX and LASX): one function a family, instantiated by element and register width.

use super::Semantics;
use crate::{Environment, Op};

/// The semantics of `op`, or `None` if it is not of this file.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    let _ = op;
    None
}
