//! The macro that defines a device's register table.

/// Defines an enum of registers, for matching in the device, and the table with all their properties in the same order.
/// The doc comment of an entry is the register's description.
macro_rules! registers {
    (
        $(#[doc = $doc:literal])*
        pub(crate) enum $enum:ident, $table:ident {
            $( $(#[doc = $about:literal])+
               $variant:ident = $name:literal @ $offset:literal, $width:literal bytes, $access:ident, $reset:expr, [$($field:expr),* $(,)?]; )+
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum $enum {
            $( $(#[doc = $about])+ $variant, )+
        }

        impl $enum {
            /// All registers, ordered by offset.
            pub(crate) const ALL: &[Self] = &[$( Self::$variant, )+];
        }

        /// The register table.
        pub(crate) static $table: &[$crate::registers::Register] = &[
            $( $crate::registers::Register {
                name: $name,
                offset: $offset,
                width: $width,
                access: $crate::registers::Access::$access,
                reset: $reset,
                fields: &[$($field),*],
                about: concat!($($about),+),
            }, )+
        ];

        // `RegisterMap::find` looks for the last register that begins at or before an offset.
        const _: () = {
            let offsets = [$( ($offset as u32, $width as u32) ),+];
            let mut index = 1;
            while index < offsets.len() {
                let (before, width) = offsets[index - 1];
                assert!(before + width <= offsets[index].0, "registers are in ascending order and do not overlap");
                index += 1;
            }
        };
    };
}

pub(crate) use registers;
