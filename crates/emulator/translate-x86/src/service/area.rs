//! The XSAVE area: saving and restoring the state of x87, SSE and AVX. Source: Intel SDM, volume 1, chapter 13.

use iced_x86::Mnemonic;
use longma_loongarch::State;

use super::frame::{FLOAT_BYTES, INITIAL_CONTROL, restore_vectors, restore_x87, save_floats};
use super::{Done, Machine, control, exceptions, set_control, x87};
use crate::registers::*;
use longma_translate::process_frame::{put_word, word};

/// The size of the area: legacy region, header and YMM upper halves.
pub const AREA_BYTES: usize = UPPERS_AT + 256;
/// XCR0: x87, SSE, AVX.
pub const COMPONENTS: u64 = X87 | SSE | AVX;
const X87: u64 = 1;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
/// The offset of XSTATE_BV and XCOMP_BV.
const HEADER: usize = FLOAT_BYTES;
/// The offset of the YMM upper halves, in both the standard and the compacted format.
pub const UPPERS_AT: usize = HEADER + 64;
/// The bit of XCOMP_BV that marks the compacted format.
const COMPACTED: u64 = 1 << 63;

/// The components that are not in their initial state (XINUSE).
fn in_use(state: &State) -> u64 {
    let uppers = (0..16).any(|n| upper(state, n) != [0; 2]);
    X87 | SSE | if uppers { AVX } else { 0 }
}

/// Saves all components, for a signal frame.
pub fn save(state: &State) -> [u8; AREA_BYTES] {
    let mut area = [0; AREA_BYTES];
    area[..FLOAT_BYTES].copy_from_slice(&save_floats(state));
    put_word(&mut area, HEADER, in_use(state));
    put_uppers(state, &mut area);
    area
}

fn put_uppers(state: &State, area: &mut [u8; AREA_BYTES]) {
    for n in 0..16 {
        let [low, high] = upper(state, n);
        put_word(area, UPPERS_AT + 16 * n, low);
        put_word(area, UPPERS_AT + 16 * n + 8, high);
    }
}

/// Restores the components in `requested`. Those not set in the header's XSTATE_BV are initialized.
pub fn restore(state: &mut State, area: &[u8; AREA_BYTES], requested: u64) {
    let present = word(area, HEADER);
    let floats: &[u8; FLOAT_BYTES] = area.first_chunk().expect("the area starts with the FXSAVE area");
    match (requested & X87 != 0, present & X87 != 0) {
        (true, true) => restore_x87(state, floats),
        (true, false) => x87::initialise(state),
        _ => {}
    }
    match (requested & SSE != 0, present & SSE != 0) {
        (true, true) => restore_vectors(state, floats),
        (true, false) => (0..16).for_each(|n| state.v[16 + n].0[..2].fill(0)),
        _ => {}
    }
    if requested & (SSE | AVX) != 0 {
        let has_mxcsr = present & SSE != 0 || word(area, HEADER + 8) & COMPACTED == 0;
        set_control(state, if has_mxcsr { word(area, 24) as u32 } else { INITIAL_CONTROL });
    }
    if requested & AVX != 0 {
        for n in 0..16 {
            let at = UPPERS_AT + 16 * n;
            let value = [word(area, at), word(area, at + 8)];
            set_upper(state, n, if present & AVX != 0 { value } else { [0; 2] });
        }
    }
}

impl Machine<'_> {
    /// XSAVE and its variants, XRSTOR, XGETBV. They are illegal unless announced.
    pub(super) fn extended_state(&mut self) -> Done {
        use Mnemonic::*;
        if !crate::features::has_avx() {
            return Err(longma_loongarch::Trap::IllegalInstruction);
        }
        let requested = (self.state.r(RAX) & 0xffff_ffff | self.state.r(RDX) << 32) & COMPONENTS;
        match self.instruction.mnemonic() {
            Xgetbv => match self.state.r(RCX) as u32 {
                0 => self.put_components(COMPONENTS),
                1 => self.put_components(in_use(self.state)),
                _ => Err(exceptions::protection()),
            },
            Xrstor | Xrstor64 => {
                let mut area = [0; AREA_BYTES];
                let address = self.aligned_address(64)?;
                self.load_bytes(address, &mut area[..UPPERS_AT])?;
                if requested & word(&area, HEADER) & AVX != 0 {
                    self.load_bytes(address + UPPERS_AT as u64, &mut area[UPPERS_AT..])?;
                }
                restore(self.state, &area, requested);
                Ok(())
            }
            mnemonic => self.save_extended(requested, matches!(mnemonic, Xsavec | Xsavec64)),
        }
    }

    fn put_components(&mut self, components: u64) -> Done {
        self.state.set_r(RAX, components);
        self.state.set_r(RDX, 0);
        Ok(())
    }

    /// XSAVE, XSAVEOPT and XSAVEC. Components not in `requested` are left unchanged in memory.
    fn save_extended(&mut self, requested: u64, compacts: bool) -> Done {
        let address = self.aligned_address(64)?;
        let mut area = [0; AREA_BYTES];
        self.load_bytes(address, &mut area[..UPPERS_AT])?;
        let all = save(self.state);
        let mut take = |from: usize, to: usize| area[from..to].copy_from_slice(&all[from..to]);
        if requested & X87 != 0 {
            take(0, 24);
            take(32, 160);
        }
        if requested & SSE != 0 {
            take(160, 416);
        }
        if requested & (SSE | AVX) != 0 {
            put_control(&mut area, control(self.state));
        }
        let used = in_use(self.state) & requested;
        if compacts {
            put_word(&mut area, HEADER, used);
            put_word(&mut area, HEADER + 8, requested | COMPACTED);
        } else {
            let old_present = word(&area, HEADER);
            put_word(&mut area, HEADER, old_present & !requested | used);
        }
        let end = if used & AVX != 0 { AREA_BYTES } else { UPPERS_AT };
        put_uppers(self.state, &mut area);
        self.store_bytes(address, &area[..end])
    }
}

/// Stores MXCSR and its mask.
fn put_control(area: &mut [u8; AREA_BYTES], control: u32) {
    put_word(area, 24, u64::from(control) | 0xffff << 32);
}
