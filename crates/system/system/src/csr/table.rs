//! All CSRs: number, name, the bits that software may write, the value after reset, and the side effects of reading and
//! writing. Source: LoongArch Reference Manual, volume 1, chapter 7; values of read-only configuration fields as QEMU's
//! la464.

/// The side effect of reading or writing a CSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No side effect.
    None,
    /// A write selects the privilege level, the translation mode or interrupts, so the core updates its mode.
    Mode,
    /// A write changes translations, so cached ones become invalid.
    Translation,
    /// A write enables instructions or interrupts, so the core checks for them before the next instruction.
    Enable,
    /// STLBPS: a write has no effect unless the TLB supports the page size.
    StlbPageSize,
    /// PGD: reads PGDL or PGDH, selected by the address that caused the exception.
    Directory,
    /// TCFG: a write starts or stops the timer.
    TimerConfiguration,
    /// TVAL: reads the remaining ticks of the timer.
    TimerValue,
    /// CNTC: a write changes the stable counter.
    CounterCompensation,
    /// TICLR: writing 1 clears the timer interrupt.
    TimerClear,
    /// LLBCTL: reads and clears the reservation.
    Reservation,
}

/// The width of a CSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits, sign-extended when read.
    Word,
    /// 64 bits.
    Long,
}

/// The description of a CSR.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The number in CSRRD, CSRWR and CSRXCHG.
    pub number: u16,
    /// The manual's name.
    pub name: &'static str,
    /// 32 or 64 bits.
    pub width: Width,
    /// The bits that software may write.
    pub writable: u64,
    /// The value after reset. Bits that the manual leaves undefined are 0.
    pub reset: u64,
    /// The side effect of reading or writing it.
    pub effect: Effect,
    /// The fields, for documentation: name, highest bit, lowest bit.
    pub fields: &'static [(&'static str, u8, u8)],
}

/// Declares the table and a constant for each number.
macro_rules! csrs {
    ($($name:ident $number:literal $width:ident $writable:literal $reset:literal $effect:ident
       [$($field:ident $high:literal:$low:literal),*])*) => {
        /// The CSRs in the order of their numbers.
        pub static ROWS: &[Row] = &[$(Row {
            number: $number,
            name: stringify!($name),
            width: Width::$width,
            writable: $writable,
            reset: $reset,
            effect: Effect::$effect,
            fields: &[$((stringify!($field), $high, $low)),*],
        }),*];

        $(#[doc = concat!("The number of ", stringify!($name), ".")] pub const $name: u16 = $number;)*
    };
}

// The low words of TLB entries contain V, D, PLV, MAT, G, PPN (physical addresses have 48 bits), NR, NX and RPLV.
csrs! {
    CRMD      0x00  Word 0x3ff                 8 Mode        [PLV 1:0, IE 2:2, DA 3:3, PG 4:4, DATF 6:5, DATM 8:7, WE 9:9]
    PRMD      0x01  Word 0xf                   0 None        [PPLV 1:0, PIE 2:2, PWE 3:3]
    EUEN      0x02  Word 0xf                   0 Enable      [FPE 0:0, SXE 1:1, ASXE 2:2, BTE 3:3]
    MISC      0x03  Word 0x7f0e0               0 Mode        [DRDTL 7:5, ALCL 15:12, DWPL 18:16]
    ECFG      0x04  Word 0x71fff               0 Enable      [LIE 12:0, VS 18:16]
    ESTAT     0x05  Word 0x3                   0 Enable      [IS 12:0, Ecode 21:16, EsubCode 30:22]
    ERA       0x06  Long 0xffffffffffffffff    0 None        [PC 63:0]
    BADV      0x07  Long 0xffffffffffffffff    0 None        [VAddr 63:0]
    BADI      0x08  Word 0x0                   0 None        [Inst 31:0]
    EENTRY    0x0c  Long 0xfffffffffffff000    0 None        [VPN 63:12]
    TLBIDX    0x10  Word 0xbf000fff            0 None        [Index 11:0, PS 29:24, NE 31:31]
    TLBEHI    0x11  Long 0xffffffffe000        0 None        [VPPN 47:13]
    TLBELO0   0x12  Long 0xe000fffffffff07f    0 None        [V 0:0, D 1:1, PLV 3:2, MAT 5:4, G 6:6, PPN 47:12, NR 61:61, NX 62:62, RPLV 63:63]
    TLBELO1   0x13  Long 0xe000fffffffff07f    0 None        [V 0:0, D 1:1, PLV 3:2, MAT 5:4, G 6:6, PPN 47:12, NR 61:61, NX 62:62, RPLV 63:63]
    ASID      0x18  Word 0x3ff           0xa0000 Translation [ASID 9:0, ASIDBITS 23:16]
    PGDL      0x19  Long 0xfffffffffffff000    0 None        [Base 63:12]
    PGDH      0x1a  Long 0xfffffffffffff000    0 None        [Base 63:12]
    PGD       0x1b  Long 0x0                   0 Directory   [Base 63:12]
    PWCL      0x1c  Word 0xffffffff            0 None        [PTbase 4:0, PTwidth 9:5, Dir1_base 14:10, Dir1_width 19:15, Dir2_base 24:20, Dir2_width 29:25, PTEWidth 31:30]
    PWCH      0x1d  Word 0xffffff              0 None        [Dir3_base 5:0, Dir3_width 11:6, Dir4_base 17:12, Dir4_width 23:18]
    STLBPS    0x1e  Word 0x3f                0xe StlbPageSize [PS 5:0]
    RVACFG    0x1f  Word 0x0                   0 None        [RBits 3:0]
    CPUID     0x20  Word 0x0                   0 None        [CoreID 8:0]
    PRCFG1    0x21  Word 0x0              0x72f8 None        [SAVENum 3:0, TimerBits 11:4, VSMax 14:12]
    PRCFG2    0x22  Long 0x0          0x3ffff000 None        [PSAVL 63:0]
    PRCFG3    0x23  Word 0x0            0x8073f2 None        [TLBType 3:0, MTLBEntries 11:4, STLBWays 19:12, STLBSets 25:20]
    SAVE0     0x30  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE1     0x31  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE2     0x32  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE3     0x33  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE4     0x34  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE5     0x35  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE6     0x36  Long 0xffffffffffffffff    0 None        [Data 63:0]
    SAVE7     0x37  Long 0xffffffffffffffff    0 None        [Data 63:0]
    TID       0x40  Word 0xffffffff            0 None        [TID 31:0]
    TCFG      0x41  Long 0xffffffffffff        0 TimerConfiguration [En 0:0, Periodic 1:1, InitVal 47:2]
    TVAL      0x42  Long 0x0                   0 TimerValue  [TimeVal 47:0]
    CNTC      0x43  Long 0xffffffffffffffff    0 CounterCompensation [Compensation 63:0]
    TICLR     0x44  Word 0x1                   0 TimerClear  [CLR 0:0]
    LLBCTL    0x60  Word 0x4                   0 Reservation [ROLLB 0:0, WCLLB 1:1, KLO 2:2]
    IMPCTL1   0x80  Word 0xffffffff            0 None        [Implementation 31:0]
    IMPCTL2   0x81  Word 0xffffffff            0 None        [Implementation 31:0]
    TLBRENTRY 0x88  Long 0xfffffffff000        0 None        [PPN 47:12]
    TLBRBADV  0x89  Long 0xffffffffffffffff    0 None        [VAddr 63:0]
    TLBRERA   0x8a  Long 0xfffffffffffffffd    0 None        [IsTLBR 0:0, PC 63:2]
    TLBRSAVE  0x8b  Long 0xffffffffffffffff    0 None        [Data 63:0]
    TLBRELO0  0x8c  Long 0xe000fffffffff07f    0 None        [V 0:0, D 1:1, PLV 3:2, MAT 5:4, G 6:6, PPN 47:12, NR 61:61, NX 62:62, RPLV 63:63]
    TLBRELO1  0x8d  Long 0xe000fffffffff07f    0 None        [V 0:0, D 1:1, PLV 3:2, MAT 5:4, G 6:6, PPN 47:12, NR 61:61, NX 62:62, RPLV 63:63]
    TLBREHI   0x8e  Long 0xffffffffe03f        0 None        [PS 5:0, VPPN 47:13]
    TLBRPRMD  0x8f  Word 0x17                  0 None        [PPLV 1:0, PIE 2:2, PWE 4:4]
    DMW0      0x180 Long 0xf00000000000003f    0 Translation [PLV0 0:0, PLV1 1:1, PLV2 2:2, PLV3 3:3, MAT 5:4, VSEG 63:60]
    DMW1      0x181 Long 0xf00000000000003f    0 Translation [PLV0 0:0, PLV1 1:1, PLV2 2:2, PLV3 3:3, MAT 5:4, VSEG 63:60]
    DMW2      0x182 Long 0xf00000000000003f    0 Translation [PLV0 0:0, PLV1 1:1, PLV2 2:2, PLV3 3:3, MAT 5:4, VSEG 63:60]
    DMW3      0x183 Long 0xf00000000000003f    0 Translation [PLV0 0:0, PLV1 1:1, PLV2 2:2, PLV3 3:3, MAT 5:4, VSEG 63:60]
}
