//! Snapshots of x86-64 sequences that are common in programs: loops, calls, comparisons and branches.

use longma_translate_conformance::emitted;
use longma_translate_x86::X86_64;

/// Title and bytes of each sequence.
const SEQUENCES: &[(&str, &[u8])] = &[
    (
        "A counted loop",
        // add eax, ecx; sub edx, 1; jne back; ret
        &[0x01, 0xc8, 0x83, 0xea, 0x01, 0x75, 0xf9, 0xc3],
    ),
    (
        "A loop over memory: the sum of words",
        // xor eax, eax; add eax, [rdi]; add rdi, 4; cmp rdi, rsi; jne back; ret
        &[0x31, 0xc0, 0x03, 0x07, 0x48, 0x83, 0xc7, 0x04, 0x48, 0x39, 0xf7, 0x75, 0xf5, 0xc3],
    ),
    (
        "A call of a function, and its return",
        // call 1; add eax, 1; ret; 1: lea eax, [rdi+rsi*2]; ret
        &[0xe8, 0x04, 0x00, 0x00, 0x00, 0x83, 0xc0, 0x01, 0xc3, 0x8d, 0x04, 0x77, 0xc3],
    ),
    (
        "A function that keeps registers on the stack",
        // push rbp; mov rbp, rsp; push rbx; sub rsp, 24; mov [rbp-16], edi; mov ebx, [rbp-16]; mov eax, ebx; add rsp,
        // 24; pop rbx; pop rbp; ret
        &[
            0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x18, 0x89, 0x7d, 0xf0, 0x8b, 0x5d, 0xf0, 0x89,
            0xd8, 0x48, 0x83, 0xc4, 0x18, 0x5b, 0x5d, 0xc3,
        ],
    ),
    (
        "A jump to an address from a table, and a call of one in memory",
        // call [rbx+8]; jmp [rdi+rax*8]
        &[0xff, 0x53, 0x08, 0xff, 0x24, 0xc7],
    ),
    (
        "Comparisons that branches, moves and sets read",
        // cmp eax, ecx; jb over; test esi, esi; cmove edx, ecx; cmp rdi, 100; setg al; movzx eax, al; over: ret
        &[
            0x39, 0xc8, 0x72, 0x0f, 0x85, 0xf6, 0x0f, 0x44, 0xd1, 0x48, 0x83, 0xff, 0x64, 0x0f, 0x9f, 0xc0,
            0x0f, 0xb6, 0xc0, 0xc3,
        ],
    ),
    (
        "A sum of 128 bits: one instruction's carry is the next one's",
        // add rax, rdi; adc rdx, rsi; ret
        &[0x48, 0x01, 0xf8, 0x48, 0x11, 0xf2, 0xc3],
    ),
    (
        "A lock: exchange until it succeeds",
        // mov ecx, 1; xor eax, eax; lock cmpxchg [rdi], ecx; jne back; ret
        &[0xb9, 0x01, 0x00, 0x00, 0x00, 0x31, 0xc0, 0xf0, 0x0f, 0xb1, 0x0f, 0x75, 0xf8, 0xc3],
    ),
    (
        "Strings: a copy and a search",
        // rep movsb; repne scasb; ret
        &[0xf3, 0xa4, 0xf2, 0xae, 0xc3],
    ),
    (
        "A loop of scalar numbers",
        // movsd xmm1, [rdi]; mulsd xmm1, xmm2; addsd xmm0, xmm1; add rdi, 8; cmp rdi, rsi; jne back; ret
        &[
            0xf2, 0x0f, 0x10, 0x0f, 0xf2, 0x0f, 0x59, 0xca, 0xf2, 0x0f, 0x58, 0xc1, 0x48, 0x83, 0xc7, 0x08,
            0x48, 0x39, 0xf7, 0x75, 0xeb, 0xc3,
        ],
    ),
    (
        "A loop of vectors",
        // movdqu xmm1, [rdi]; paddd xmm0, xmm1; movdqa [rdi], xmm0; add rdi, 16; cmp rdi, rsi; jne back; ret
        &[
            0xf3, 0x0f, 0x6f, 0x0f, 0x66, 0x0f, 0xfe, 0xc1, 0x66, 0x0f, 0x7f, 0x07, 0x48, 0x83, 0xc7, 0x10,
            0x48, 0x39, 0xf7, 0x75, 0xeb, 0xc3,
        ],
    ),
    (
        "A loop of doubles that is entered in its middle",
        // movsd xmm0, [rdi]; movsd xmm1, [rdi+8]; jmp 1; back: addsd xmm0, xmm0; subsd xmm1, xmm0; 1: mulsd xmm0, xmm1;
        // dec ecx; jne back; movsd [rdi], xmm0; ret
        &[
            0xf2, 0x0f, 0x10, 0x07, 0xf2, 0x0f, 0x10, 0x4f, 0x08, 0xeb, 0x08, 0xf2, 0x0f, 0x58, 0xc0, 0xf2,
            0x0f, 0x5c, 0xc8, 0xf2, 0x0f, 0x59, 0xc1, 0xff, 0xc9, 0x75, 0xf0, 0xf2, 0x0f, 0x11, 0x07, 0xc3,
        ],
    ),
    (
        "A loop of 256 bits, and the sum of its halves",
        // vmovdqu ymm0, [rdi]; back: vpaddd ymm0, ymm0, [rdi+32]; add rdi, 32; dec ecx; jne back; vextracti128 xmm1,
        // ymm0, 1; vpaddd xmm0, xmm0, xmm1; vmovd eax, xmm0; vzeroupper; ret
        &[
            0xc5, 0xfe, 0x6f, 0x07, 0xc5, 0xfd, 0xfe, 0x47, 0x20, 0x48, 0x83, 0xc7, 0x20, 0xff, 0xc9, 0x75,
            0xf3, 0xc4, 0xe3, 0x7d, 0x39, 0xc1, 0x01, 0xc5, 0xf9, 0xfe, 0xc1, 0xc5, 0xf9, 0x7e, 0xc0, 0xc5,
            0xf8, 0x77, 0xc3,
        ],
    ),
    (
        "A system call",
        // mov eax, 1; syscall; ret
        &[0xb8, 0x01, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3],
    ),
];

/// The text of all sequences.
pub fn text() -> String {
    emitted::sequences::<X86_64>(all())
}

/// The number of instructions with other sets of optimizations, and the names of the optimizations that change no
/// sequence.
pub fn by_optimizations() -> (String, Vec<&'static str>) {
    emitted::by_optimizations::<X86_64>(all())
}

fn all() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    SEQUENCES.iter().map(|(what, code)| (*what, code.to_vec()))
}
