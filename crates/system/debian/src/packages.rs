//! The packages, pinned by hash. Updated from Debian's list of packages for loong64 on 2026-11-29.

/// A package of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The path in the archive.
    pub path: String,
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
}

/// The packages of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packages {
    /// The kernel.
    pub kernel: Pin,
    /// Its modules.
    pub modules: Pin,
    /// The programs.
    pub busybox: Pin,
}

impl Packages {
    /// The packages with which this version has been tested.
    pub fn pinned() -> Self {
        let pin = |path: &str, sha256: &str| Pin { path: path.to_owned(), sha256: sha256.to_owned() };
        Self {
            kernel: pin(
                "pool/main/l/linux/linux-binary-7.2.13+deb14-loong64_7.2.13-1_loong64.deb",
                "8168c963730b5b4cbb631e20bcb77e80d704312a02c42471cdb28c171a15b411",
            ),
            modules: pin(
                "pool/main/l/linux/linux-modules-7.2.13+deb14-loong64_7.2.13-1_loong64.deb",
                "5693f048c2f043db020416cb984455902748004dd39e3c4671615a08df19e00b",
            ),
            busybox: pin(
                "pool/main/b/busybox/busybox-static_1.38.0-3+b1_loong64.deb",
                "d5dc29174cd393bd100b958e2965fa18a63be5581177d076fa1e599a1703a957",
            ),
        }
    }

    /// All of them.
    pub fn each(&self) -> [&Pin; 3] {
        [&self.kernel, &self.modules, &self.busybox]
    }
}
