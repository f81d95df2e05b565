//! Programs about translation: direct-mapped windows, TLB, refill and page walks.

use longma_loongarch::Op;

use crate::assembler::*;

/// A direct-mapped window for addresses from 0 at privilege level 0, so that programs continue to run after they enable
/// paging.
const WINDOW: u64 = 1;
/// CRMD with paging enabled.
const PAGING: u64 = 0x10;
/// A virtual address in the upper half, which the page table maps.
const MAPPED: u64 = 0xffff_8012_3456_8000;
/// The attributes of a valid, dirty, cached page at privilege level 0.
const KERNEL_PAGE: u64 = 0x13;

const PAGE_DIRECTORY: u64 = DATA;
const MIDDLE_DIRECTORY: u64 = DATA + 0x4000;
const PAGE_TABLE: u64 = DATA + 0x8000;
const PAGE: u64 = DATA + 0x2_0000;

/// Page walks as in Linux: three levels with 16 KiB pages, and 11 bits for each level from bit 14.
const WALK_LOW: u64 = 14 | 11 << 5 | 25 << 10 | 11 << 15;
const WALK_HIGH: u64 = 36 | 11 << 6;

fn index(address: u64, start: u32) -> u64 {
    (address >> start & 0x7ff) * 8
}

/// Appends a store of a doubleword to a physical address.
fn put(code: &mut Code, address: u64, value: u64) {
    code.set(T0, address).set(T1, value).rri(Op::StD, T1, T0, 0);
}

fn enable_paging(code: &mut Code) {
    code.write(csr::DMW0, WINDOW).write(csr::STLBPS, 14).write(csr::ASID, 5);
    code.invtlb(0, 0, 0);
    code.write(csr::CRMD, PAGING);
}

/// Writes a page table that maps the pair of pages at [`MAPPED`].
fn write_tables(code: &mut Code, even: u64, odd: u64) {
    put(code, PAGE_DIRECTORY + index(MAPPED, 36), MIDDLE_DIRECTORY);
    put(code, MIDDLE_DIRECTORY + index(MAPPED, 25), PAGE_TABLE);
    let table = PAGE_TABLE + (index(MAPPED, 14) & !15);
    put(code, table, even);
    put(code, table + 8, odd);
    code.write(csr::PWCL, WALK_LOW).write(csr::PWCH, WALK_HIGH).write(csr::PGDH, PAGE_DIRECTORY);
}

/// A refill handler as in an operating system, which also records the CSRs of the exception.
fn walking_handler() -> Code {
    let mut code = Code::at(REFILL);
    code.record_csr(csr::TLBRBADV).record_csr(csr::TLBREHI).record_csr(csr::CRMD).record_csr(csr::TLBRPRMD);
    code.read(H0, csr::PGD).rri(Op::Lddir, H0, H0, 3).rri(Op::Lddir, H0, H0, 1);
    code.rri(Op::Ldpte, 0, H0, 0).rri(Op::Ldpte, 0, H0, 1);
    code.record_csr(csr::TLBRELO0).plain(Op::Tlbfill).plain(Op::Ertn);
    code
}

pub fn refill_maps_a_page() -> (Program, Vec<u64>) {
    let even = PAGE | KERNEL_PAGE;
    let odd = (PAGE + 0x4000) | KERNEL_PAGE;
    let body = |code: &mut Code| {
        write_tables(code, even, odd);
        put(code, PAGE + 0x128, 0x1234_5678_9abc_def0);
        enable_paging(code);
        code.set(T2, MAPPED).rri(Op::LdD, A0, T2, 0x128).record(A0);
        // The store is to the odd page, which the same entry maps.
        code.set(T2, MAPPED + 0x4000).set(A1, 77).rri(Op::StD, A1, T2, 8);
        code.set(T2, PAGE + 0x4008).rri(Op::LdD, A0, T2, 0).record(A0);
    };
    let expected = vec![
        MAPPED + 0x128,
        // VPPN; the page size is 0, since no walk has set it yet.
        MAPPED & !0x1fff,
        // CRMD: direct translation at level 0 without interrupts. PRMD: level 0.
        8,
        0,
        even,
        0x1234_5678_9abc_def0,
        77,
    ];
    (program(body, vec![walking_handler()]), expected)
}

/// Maps the pair at [`MAPPED`] without a walk.
fn map(code: &mut Code, even: u64, odd: u64) {
    code.write(csr::TLBEHI, MAPPED).write(csr::TLBELO0, even).write(csr::TLBELO1, odd);
    code.write(csr::TLBIDX, 14 << 24).plain(Op::Tlbfill);
}

/// A handler that records a page exception and continues after the instruction at level 0.
fn page_handler() -> Code {
    let mut code = Code::at(HANDLER);
    record_exception(&mut code);
    code.record_csr(csr::BADV).record_csr(csr::TLBEHI);
    code.read(H0, csr::ERA).rri(Op::AddiD, H0, H0, 4).swap(H0, csr::ERA);
    code.set(H0, 0).swap(H0, csr::PRMD).plain(Op::Ertn);
    code
}

pub fn each_kind_of_page_has_its_exception() -> (Program, Vec<u64>) {
    const NOT_READABLE: u64 = 1 << 61;
    const FOR_LEVEL_3_ONLY: u64 = 1 << 63 | 3 << 2;
    // Entry of the even page, access and exception code.
    let cases = [
        (PAGE | KERNEL_PAGE & !1, Op::LdD, 1),
        (PAGE | KERNEL_PAGE & !1, Op::StD, 2),
        (PAGE | KERNEL_PAGE & !2, Op::StD, 4),
        (PAGE | KERNEL_PAGE | NOT_READABLE, Op::LdD, 5),
        (PAGE | KERNEL_PAGE | FOR_LEVEL_3_ONLY, Op::LdD, 7),
        (PAGE | KERNEL_PAGE | FOR_LEVEL_3_ONLY, Op::StD, 7),
    ];
    let mut expected = Vec::new();
    let body = |code: &mut Code| {
        enable_paging(code);
        code.set(T2, MAPPED);
        for (even, op, number) in cases {
            code.invtlb(0, 0, 0);
            map(code, even, 0);
            expected.extend([number, code.here(), MAPPED + 8, MAPPED & !0x1fff]);
            code.rri(op, A0, T2, 8);
        }
        // Permitted accesses: a load from a clean page, and a store to a page that is only not readable.
        code.invtlb(0, 0, 0);
        map(code, PAGE | KERNEL_PAGE & !2, 0);
        code.rri(Op::LdD, A0, T2, 8);
        code.invtlb(0, 0, 0);
        map(code, PAGE | KERNEL_PAGE | NOT_READABLE, 0);
        code.rri(Op::StD, A0, T2, 8);
    };
    let program = program(body, vec![page_handler()]);
    (program, expected)
}

pub fn a_page_that_is_not_executable_refuses_a_fetch() -> (Program, Vec<u64>) {
    let mut expected = Vec::new();
    let body = |code: &mut Code| {
        enable_paging(code);
        map(code, PAGE | KERNEL_PAGE | 1 << 62, 0);
        code.set(T2, MAPPED + 0x40).rri(Op::Jirl, RA, T2, 0);
        expected.extend([6, MAPPED + 0x40, MAPPED + 0x40, MAPPED & !0x1fff]);
    };
    // The handler returns to the caller.
    let mut handler = Code::at(HANDLER);
    record_exception(&mut handler);
    handler.record_csr(csr::BADV).record_csr(csr::TLBEHI).swap(RA, csr::ERA).plain(Op::Ertn);
    (program(body, vec![handler]), expected)
}

pub fn windows_translate_by_the_upper_bits_and_the_level() -> (Program, Vec<u64>) {
    let mut expected = Vec::new();
    let body = |code: &mut Code| {
        put(code, PAGE, 0xaaaa);
        enable_paging(code);
        code.write(csr::DMW1, 0x9000_0000_0000_0011).write(csr::DMW2, 0x8000_0000_0000_0008);
        code.set(T2, 0x9000_0000_0000_0000 | PAGE).rri(Op::LdD, A0, T2, 0).record(A0);
        expected.push(0xaaaa);
        // A window ignores bits 59 to 48.
        code.set(T2, 0x9abc_0000_0000_0000 | PAGE).rri(Op::LdD, A0, T2, 0).record(A0);
        expected.push(0xaaaa);
        // Level 0 may not use a window for level 3. Without a window, the address is not valid.
        code.set(T2, 0x8000_0000_0000_0000 | PAGE);
        expected.extend([8 | 1 << 6, code.here()]);
        code.rri(Op::LdD, A0, T2, 0);
        code.record_csr(csr::BADV);
        expected.push(0x8000_0000_0000_0000 | PAGE);
    };
    let program = program(body, vec![skipping_handler()]);
    (program, expected)
}

/// Searches the TLB for an address and records whether it found no entry.
fn record_presence(code: &mut Code, address: u64) {
    code.write(csr::TLBEHI, address).plain(Op::Tlbsrch);
    code.read(A0, csr::TLBIDX).rri(Op::SrliD, A0, A0, 31).rri(Op::Andi, A0, A0, 1).record(A0);
}

pub fn invtlb_removes_what_its_operation_says() -> (Program, Vec<u64>) {
    // The entries belong to address space 5, except for the global one.
    let first = MAPPED;
    let second = MAPPED + 0x10_0000;
    let global = MAPPED + 0x20_0000;
    // 1 if the entry was invalidated: the first and the second of space 5, and the global one.
    let outcomes: [[u64; 3]; 7] =
        [[1, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]];
    let body = |code: &mut Code| {
        enable_paging(code);
        for operation in 0..outcomes.len() {
            for (address, attributes) in [(first, 0), (second, 0), (global, 0x40)] {
                let page = PAGE | KERNEL_PAGE | attributes;
                code.write(csr::TLBEHI, address).write(csr::TLBELO0, page).write(csr::TLBELO1, page);
                code.write(csr::TLBIDX, 14 << 24).plain(Op::Tlbfill);
            }
            code.set(A1, 5).set(A2, first);
            let (asid, address) = match operation {
                0..=3 => (0, 0),
                4 => (A1, 0),
                _ => (A1, A2),
            };
            code.invtlb(operation as i32, asid, address);
            for address in [first, second, global] {
                record_presence(code, address);
            }
            code.invtlb(0, 0, 0);
        }
        // An operation that does not exist is an illegal instruction.
        code.invtlb(7, 0, 0);
    };
    let program = program(body, vec![skipping_handler()]);
    let last = program.0[0].words.iter().position(|word| *word == 0x0649_8007).expect("it is there");
    let mut expected = outcomes.concat();
    expected.extend([0xd, CODE + 4 * last as u64]);
    (program, expected)
}

pub fn an_entry_is_found_and_read_by_its_index() -> (Program, Vec<u64>) {
    let even = PAGE | KERNEL_PAGE | 0x40;
    let body = |code: &mut Code| {
        enable_paging(code);
        code.write(csr::TLBEHI, MAPPED).write(csr::TLBELO0, even).write(csr::TLBELO1, even | 1 << 62);
        // A page of 2 MiB is in the MTLB, whose indices follow the 2048 of the STLB.
        code.write(csr::TLBIDX, 21 << 24 | (2048 + 9)).plain(Op::Tlbwr);
        code.write(csr::TLBEHI, MAPPED).write(csr::TLBIDX, 0).plain(Op::Tlbsrch).record_csr(csr::TLBIDX);
        code.write(csr::TLBEHI, 0).write(csr::TLBELO0, 0).write(csr::TLBELO1, 0).plain(Op::Tlbrd);
        for number in [csr::TLBEHI, csr::TLBELO0, csr::TLBELO1, csr::TLBIDX] {
            code.record_csr(number);
        }
        // An entry that does not exist.
        code.write(csr::TLBIDX, 2048 + 10).plain(Op::Tlbrd);
        for number in [csr::TLBEHI, csr::TLBELO0] {
            code.record_csr(number);
        }
        code.read(A0, csr::TLBIDX).rri(Op::SrliD, A0, A0, 31).rri(Op::Andi, A0, A0, 1).record(A0);
    };
    let expected = vec![2048 + 9, MAPPED & !0x1fff, even, even | 1 << 62, 21 << 24 | (2048 + 9), 0, 0, 1];
    (program(body, vec![]), expected)
}

pub fn an_address_space_sees_its_entries_and_global_ones() -> (Program, Vec<u64>) {
    let global = MAPPED + 0x10_0000;
    let body = |code: &mut Code| {
        put(code, PAGE + 8, 1);
        put(code, PAGE + 0x1_0008, 2);
        put(code, PAGE + 0x2_0008, 3);
        enable_paging(code);
        for (asid, page) in [(1, PAGE), (2, PAGE + 0x1_0000)] {
            code.write(csr::ASID, asid);
            map(code, page | KERNEL_PAGE, 0);
        }
        let page = (PAGE + 0x2_0000) | KERNEL_PAGE | 0x40;
        code.write(csr::TLBEHI, global)
            .write(csr::TLBELO0, page)
            .write(csr::TLBELO1, page)
            .plain(Op::Tlbfill);
        for asid in [1, 2] {
            code.write(csr::ASID, asid);
            for address in [MAPPED, global] {
                code.set(T2, address).rri(Op::LdD, A0, T2, 8).record(A0);
            }
        }
    };
    (program(body, vec![]), vec![1, 3, 2, 3])
}

pub fn a_huge_page_is_two_halves() -> (Program, Vec<u64>) {
    // A global page of 32 MiB, mapped by an entry of the middle directory.
    const HUGE: u64 = 0x40;
    const GLOBAL: u64 = 1 << 12;
    let base = 0;
    let address = MAPPED & !0x1ff_ffff;
    let body = |code: &mut Code| {
        write_tables(code, 0, 0);
        put(code, MIDDLE_DIRECTORY + index(MAPPED, 25), base | KERNEL_PAGE | HUGE | GLOBAL);
        put(code, PAGE + 0x10, 0x4242);
        enable_paging(code);
        code.set(T2, address + PAGE).rri(Op::LdD, A0, T2, 0x10).record(A0);
        code.write(csr::TLBEHI, address).plain(Op::Tlbsrch).plain(Op::Tlbrd);
        code.record_csr(csr::TLBELO0).record_csr(csr::TLBELO1);
        code.read(A0, csr::TLBIDX).rri(Op::SrliD, A0, A0, 24).rri(Op::Andi, A0, A0, 63).record(A0);
    };
    let mut handler = Code::at(REFILL);
    handler.read(H0, csr::PGD).rri(Op::Lddir, H0, H0, 3).rri(Op::Lddir, H0, H0, 1);
    handler.rri(Op::Ldpte, 0, H0, 0).rri(Op::Ldpte, 0, H0, 1).plain(Op::Tlbfill).plain(Op::Ertn);
    let low = base | KERNEL_PAGE | 0x40;
    let expected = vec![0x4242, low, low + (1 << 24), 24];
    const { assert!(PAGE + 0x10 >= 1 << 24, "the access is to the upper half") };
    (program(body, vec![handler]), expected)
}
