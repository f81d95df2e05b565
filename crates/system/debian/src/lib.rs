//! A kernel and a RAM disk for LoongArch from Debian's packages, made once without privileges, and cached.

mod download;
mod image;
mod index;
mod package;
mod packages;
mod ram_disk;

pub use download::{Archive, Observer};
pub use image::{Image, ImageError, Source, cache_folder, image};
pub use index::{Listed, newest_kernel};
pub use package::{PackageError, files};
