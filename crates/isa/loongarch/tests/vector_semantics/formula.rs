//! The expected results of integer vector instructions, computed by formulas over exact 128-bit integers. The
//! implementation is independent: it reads lanes from bytes and parses mnemonics at run time. Source: the LSX and LASX
//! definitions of the unofficial LoongArch intrinsics guide, tested there on hardware.

use longma_loongarch::{Extension, Instruction};

use crate::{
    case::{Inputs, MEMORY_MIDDLE, Outputs, is_memory},
    formula_float,
};

/// The integer type for exact arithmetic. Only 128-bit lanes wrap.
pub type Number = i128;

/// A vector register as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub [u8; 32]);

impl From<[u64; 4]> for Register {
    fn from(words: [u64; 4]) -> Self {
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        Self(bytes.try_into().expect("four words are 32 bytes"))
    }
}

impl Register {
    /// Lane `index` of `bits` bits as an unsigned number (128-bit lanes wrap).
    pub fn unsigned(&self, bits: usize, index: usize) -> Number {
        let bytes = bits / 8;
        let lane = &self.0[index * bytes..][..bytes];
        lane.iter().rev().fold(0u128, |value, &byte| value << 8 | u128::from(byte)) as Number
    }

    /// Lane `index` as an `element`.
    pub fn get(&self, element: Element, index: usize) -> Number {
        let value = self.unsigned(element.bits, index);
        if element.signed && element.bits < 128 && value >> (element.bits - 1) == 1 {
            value - (1 << element.bits)
        } else {
            value
        }
    }

    /// Sets lane `index` of `bits` bits to `value` modulo 2^`bits`.
    pub fn put(&mut self, bits: usize, index: usize, value: Number) {
        let bytes = bits / 8;
        self.0[index * bytes..][..bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }

    fn words(&self) -> [u64; 4] {
        std::array::from_fn(|i| self.unsigned(64, i) as u64)
    }
}

/// The type of a lane, as encoded in a mnemonic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    pub bits: usize,
    pub signed: bool,
}

impl Element {
    fn parse(text: &str) -> Option<Self> {
        let (letter, signed) = text.strip_suffix('u').map_or((text, true), |letter| (letter, false));
        let bits = match letter {
            "b" => 8,
            "h" => 16,
            "w" => 32,
            "d" => 64,
            "q" | "v" => 128,
            _ => return None,
        };
        Some(Self { bits, signed })
    }

    fn range(self) -> std::ops::RangeInclusive<Number> {
        if self.signed {
            -(1 << (self.bits - 1))..=(1 << (self.bits - 1)) - 1
        } else {
            0..=(1 << self.bits) - 1
        }
    }

    fn clamp(self, value: Number) -> Number {
        value.clamp(*self.range().start(), *self.range().end())
    }
}

/// An instruction with its parsed mnemonic and its operands.
pub struct Operation {
    /// The mnemonic without the x of LASX and without suffixes.
    pub stem: String,
    /// The suffixes.
    pub suffixes: Vec<String>,
    /// The register width in bytes: 16 or 32.
    pub bytes: usize,
    pub d: Register,
    pub j: Register,
    /// Register k, or the immediate in each lane of the last suffix's type.
    pub k: Register,
    pub a: Register,
    pub imm: Number,
    pub general_j: u64,
    pub general_k: u64,
}

impl Operation {
    fn new(instruction: &Instruction, inputs: &Inputs) -> Self {
        let lasx = instruction.op.row().extension == Extension::Lasx;
        let mut parts = instruction.op.mnemonic().split('.').map(str::to_owned);
        let stem = parts.next().expect("a name has a first part");
        let suffixes: Vec<String> = parts.collect();
        let [d, j, mut k, a] = inputs.vectors.map(Register::from);
        let imm = Number::from(instruction.imm);
        if stem.ends_with('i') && stem != "vldi" {
            let bits = suffixes.last().and_then(|last| Element::parse(last)).map_or(128, |last| last.bits);
            (0..256 / bits).for_each(|i| k.put(bits, i, imm));
        }
        Self {
            stem: if lasx { stem.trim_start_matches('x').to_owned() } else { stem },
            suffixes,
            bytes: if lasx { 32 } else { 16 },
            d,
            j,
            k,
            a,
            imm,
            general_j: inputs.general[1],
            general_k: inputs.general[2],
        }
    }

    fn element(&self, index: usize) -> Option<Element> {
        self.suffixes.get(index).and_then(|text| Element::parse(text))
    }

    /// The result whose lane `i` of `bits` bits is `f(i)`. The bits above it come from d.
    pub fn lanes(&self, bits: usize, mut f: impl FnMut(usize) -> Number) -> Register {
        let mut result = self.d;
        for i in 0..self.bytes * 8 / bits {
            result.put(bits, i, f(i));
        }
        result
    }
}

/// The expected outputs of `instruction`; `None` if no formula covers it.
pub fn expected(instruction: &Instruction, inputs: &Inputs) -> Option<Outputs> {
    let mut left = Outputs {
        vector: inputs.vectors[0],
        general: inputs.general[0],
        flag: inputs.flag,
        fcsr: inputs.fcsr,
        memory: inputs.memory,
    };
    let operation = Operation::new(instruction, inputs);
    if is_memory(instruction.op) {
        memory(&operation, instruction, inputs, &mut left)?;
    } else if let Some(flag) = flag(&operation) {
        left.flag = flag.into();
    } else if operation.stem == "vpickve2gr" {
        let element = operation.element(0)?;
        left.general = operation.j.get(element, operation.imm as usize) as u64;
    } else if let Some((result, fcsr)) = formula_float::result(&operation, inputs.fcsr) {
        left.vector = result.words();
        left.fcsr = fcsr;
    } else {
        let result = lanewise(&operation)
            .or_else(|| widening(&operation))
            .or_else(|| narrowing(&operation))
            .or_else(|| moving(&operation))
            .or_else(|| crossing(&operation))?;
        left.vector = result.words();
    }
    Some(left)
}

fn memory(o: &Operation, instruction: &Instruction, inputs: &Inputs, left: &mut Outputs) -> Option<()> {
    let indexed = o.stem.ends_with('x');
    let offset = if indexed { inputs.general[2] as i64 } else { instruction.imm.into() };
    let at = (MEMORY_MIDDLE as i64 + offset) as usize;
    let mut register = o.d;
    match o.stem.as_str() {
        "vld" | "vldx" => register.0[..o.bytes].copy_from_slice(&inputs.memory[at..at + o.bytes]),
        "vst" | "vstx" => left.memory[at..at + o.bytes].copy_from_slice(&o.d.0[..o.bytes]),
        "vldrepl" => {
            let size = o.element(0)?.bits / 8;
            (0..o.bytes).for_each(|i| register.0[i] = inputs.memory[at + i % size]);
        }
        "vstelm" => {
            let size = o.element(0)?.bits / 8;
            left.memory[at..at + size].copy_from_slice(&o.d.0[size * instruction.imm2 as usize..][..size]);
        }
        _ => return None,
    }
    left.vector = register.words();
    Some(())
}

/// The condition flag result of the vset family.
fn flag(o: &Operation) -> Option<bool> {
    let bytes = &o.j.0[..o.bytes];
    let zero_lane = |bits: usize| bytes.chunks(bits / 8).any(|lane| lane.iter().all(|&byte| byte == 0));
    Some(match o.stem.as_str() {
        "vseteqz" => zero_lane(o.bytes * 8),
        "vsetnez" => !zero_lane(o.bytes * 8),
        "vsetanyeqz" => zero_lane(o.element(0)?.bits),
        "vsetallnez" => !zero_lane(o.element(0)?.bits),
        _ => return None,
    })
}

/// Bit `index` of `value`.
fn bit(value: Number, index: usize) -> Number {
    value >> index & 1
}

/// The integer whose bit `i` is `f(i)`.
fn from_bits(bits: usize, f: impl Fn(usize) -> Number) -> Number {
    (0..bits).map(|i| f(i) << i).sum()
}

/// `value / 2^amount`, rounded half up.
fn rounded(value: Number, amount: usize) -> Number {
    if amount == 0 { value } else { (value >> amount) + bit(value, amount - 1) }
}

/// Computes result lane `i` from lanes `i` of d, j and k, all of one type.
fn lanewise(o: &Operation) -> Option<Register> {
    let e = o.element(0)?;
    let bits = e.bits;
    let amount = |k: Number| k.rem_euclid(bits as Number) as usize;
    let truth = |condition: bool| -Number::from(condition);
    let logical = |x: Number| if bits == 128 { x } else { x.rem_euclid(1 << bits) };
    let stem = o.stem.strip_suffix('i').unwrap_or(&o.stem);
    let f: Box<dyn Fn(Number, Number, Number) -> Number> = match (stem, o.suffixes.len()) {
        ("vadd", 1) => Box::new(|_, j, k| j.wrapping_add(k)),
        ("vsub", 1) => Box::new(|_, j, k| j.wrapping_sub(k)),
        ("vneg", 1) => Box::new(|_, j, _| -j),
        ("vsadd", 1) => Box::new(|_, j, k| e.clamp(j + k)),
        ("vssub", 1) => Box::new(|_, j, k| e.clamp(j - k)),
        ("vadda", 1) => Box::new(|_, j, k| j.abs() + k.abs()),
        ("vabsd", 1) => Box::new(|_, j, k| (j - k).abs()),
        ("vavg", 1) => Box::new(|_, j, k| (j + k).div_euclid(2)),
        ("vavgr", 1) => Box::new(|_, j, k| (j + k + 1).div_euclid(2)),
        ("vmax", 1) => Box::new(|_, j, k| if j > k { j } else { k }),
        ("vmin", 1) => Box::new(|_, j, k| if j < k { j } else { k }),
        ("vsigncov", 1) => Box::new(|_, j, k| j.signum() * k),
        ("vsat", 1) if e.signed => Box::new(|_, j, _| j.clamp(-(1 << o.imm), (1 << o.imm) - 1)),
        ("vsat", 1) => Box::new(|_, j, _| j.min((1 << (o.imm + 1)) - 1)),
        ("vseq", 1) => Box::new(move |_, j, k| truth(j == k)),
        ("vsle", 1) => Box::new(move |_, j, k| truth(j <= k)),
        ("vslt", 1) => Box::new(move |_, j, k| truth(j < k)),
        ("vmul", 1) => Box::new(|_, j, k| j.wrapping_mul(k)),
        ("vmuh", 1) if bits == 64 && !e.signed => {
            Box::new(|_, j, k| ((j as u128 * k as u128) >> 64) as Number)
        }
        ("vmuh", 1) => Box::new(|_, j, k| (j * k) >> bits),
        ("vmadd", 1) => Box::new(|d, j, k| d.wrapping_add(j.wrapping_mul(k))),
        ("vmsub", 1) => Box::new(|d, j, k| d.wrapping_sub(j.wrapping_mul(k))),
        ("vdiv", 1) => Box::new(|_, j, k| j.checked_div(k).unwrap_or(0)),
        ("vmod", 1) => Box::new(|_, j, k| j.checked_rem(k).unwrap_or(0)),
        ("vsll", 1) => Box::new(|_, j, k| j << amount(k)),
        ("vsrl", 1) => Box::new(|_, j, k| logical(j) >> amount(k)),
        ("vsra", 1) => Box::new(|_, j, k| j >> amount(k)),
        ("vrotr", 1) => Box::new(|_, j, k| from_bits(bits, |i| bit(j, (i + amount(k)) % bits))),
        ("vsrlr", 1) => Box::new(|_, j, k| rounded(logical(j), amount(k))),
        ("vsrar", 1) => Box::new(|_, j, k| rounded(j, amount(k))),
        ("vbitclr", 1) => Box::new(|_, j, k| j - (bit(j, amount(k)) << amount(k))),
        ("vbitset", 1) => Box::new(|_, j, k| j + ((1 - bit(j, amount(k))) << amount(k))),
        ("vbitrev", 1) => Box::new(|_, j, k| from_bits(bits, |i| bit(j, i) ^ Number::from(i == amount(k)))),
        ("vclo", 1) => Box::new(|_, j, _| (0..bits).rev().take_while(|&i| bit(j, i) == 1).count() as Number),
        ("vclz", 1) => Box::new(|_, j, _| (0..bits).rev().take_while(|&i| bit(j, i) == 0).count() as Number),
        ("vpcnt", 1) => Box::new(|_, j, _| (0..bits).map(|i| bit(j, i)).sum()),
        ("vand", 1) => Box::new(|_, j, k| from_128(|i| bit(j, i) * bit(k, i))),
        ("vor", 1) => Box::new(|_, j, k| from_128(|i| bit(j, i).max(bit(k, i)))),
        ("vxor", 1) => Box::new(|_, j, k| from_128(|i| (bit(j, i) + bit(k, i)) % 2)),
        ("vnor", 1) => Box::new(|_, j, k| from_128(|i| 1 - bit(j, i).max(bit(k, i)))),
        ("vandn", 1) => Box::new(|_, j, k| from_128(|i| (1 - bit(j, i)) * bit(k, i))),
        ("vorn", 1) => Box::new(|_, j, k| from_128(|i| bit(j, i).max(1 - bit(k, i)))),
        ("vbitsel", 1) if bits == 8 => {
            Box::new(|d, j, k| from_128(|i| if bit(d, i) == 1 { bit(k, i) } else { bit(j, i) }))
        }
        _ => return None,
    };
    Some(o.lanes(bits, |i| f(o.d.get(e, i), o.j.get(e, i), o.k.get(e, i))))
}

/// The integer whose bit `i` of 128 is `f(i)`. A sum would overflow.
fn from_128(f: impl Fn(usize) -> Number) -> Number {
    (0..128).fold(0u128, |value, i| value | (f(i) as u128) << i) as Number
}

/// Computes wide result lanes from narrow lanes.
fn widening(o: &Operation) -> Option<Register> {
    let (wide, narrow) = (o.element(0)?, o.element(1)?);
    // With three suffixes, the second is j's type and the third k's.
    let other = o.element(2).unwrap_or(narrow);
    if wide.bits != 2 * narrow.bits {
        return None;
    }
    let narrow_lanes = 128 / narrow.bits;
    let parity = usize::from(o.stem.ends_with("od"));
    let (j, k) = (|i: usize| o.j.get(narrow, 2 * i + parity), |i: usize| o.k.get(other, 2 * i + parity));
    let odd = |i: usize| o.j.get(narrow, 2 * i + 1);
    let even = |i: usize| o.k.get(narrow, 2 * i);
    let product = |i: usize| j(i).wrapping_mul(k(i));
    // The narrow lane in the low 64 bits of the 128-bit half that contains result lane i.
    let low = |i: usize| i / (narrow_lanes / 2) * narrow_lanes + i % (narrow_lanes / 2);
    let f: Box<dyn Fn(usize) -> Number> = match o.stem.as_str() {
        "vaddwev" | "vaddwod" => Box::new(|i| j(i) + k(i)),
        "vsubwev" | "vsubwod" => Box::new(|i| j(i) - k(i)),
        "vmulwev" | "vmulwod" => Box::new(product),
        "vmaddwev" | "vmaddwod" => Box::new(|i| o.d.unsigned(wide.bits, i).wrapping_add(product(i))),
        "vhaddw" => Box::new(|i| odd(i) + even(i)),
        "vhsubw" => Box::new(|i| odd(i) - even(i)),
        "vsllwil" => Box::new(|i| o.j.get(narrow, low(i)) * (1 << o.imm)),
        "vextl" => Box::new(|i| o.j.get(narrow, low(i))),
        "vexth" => Box::new(|i| o.j.get(narrow, low(i) + narrow_lanes / 2)),
        _ => return None,
    };
    Some(o.lanes(wide.bits, f))
}

/// Computes narrow result lanes by shifting wide lanes.
fn narrowing(o: &Operation) -> Option<Register> {
    let (narrow, wide) = (o.element(0)?, o.element(1)?);
    if 2 * narrow.bits != wide.bits {
        return None;
    }
    let immediate = o.stem.ends_with('i');
    let kind = o.stem.trim_end_matches('i').strip_suffix('n')?;
    let (saturates, kind) = match kind.strip_prefix("vss") {
        Some(kind) => (true, kind),
        None => (false, kind.strip_prefix("vs")?),
    };
    let rounds = kind.len() == 3;
    let arithmetic = match kind {
        "rl" | "rlr" => false,
        "ra" | "rar" => true,
        _ => return None,
    };
    let wide_lanes = 128 / wide.bits;
    Some(o.lanes(narrow.bits, |i| {
        let (half, i) = (i / (2 * wide_lanes), i % (2 * wide_lanes));
        let upper = i >= wide_lanes;
        let source = half * wide_lanes + i % wide_lanes;
        if upper && !immediate {
            return 0;
        }
        let register = if upper { &o.d } else { &o.j };
        let amount = if immediate { o.imm } else { o.k.unsigned(wide.bits, source) } % wide.bits as Number;
        shifted_narrow(register.unsigned(wide.bits, source), wide.bits, amount as usize, arithmetic, rounds)
            .saturated(narrow, saturates)
    }))
}

/// A shifted number that may need 128 bits plus a sign.
struct Shifted {
    negative: bool,
    bits: u128,
}

impl Shifted {
    fn saturated(self, to: Element, saturates: bool) -> Number {
        let (min, max) = (*to.range().start(), *to.range().end());
        match self.negative {
            _ if !saturates => self.bits as Number,
            true => (self.bits as Number).max(min),
            false if self.bits > max as u128 => max,
            false => self.bits as Number,
        }
    }
}

/// Shifts the `width`-bit pattern `value` one bit at a time.
fn shifted_narrow(value: Number, width: usize, amount: usize, arithmetic: bool, rounds: bool) -> Shifted {
    let pattern = value as u128;
    let sign = pattern >> (width - 1) & 1 == 1 && arithmetic;
    let filled = if sign && width < 128 { pattern | u128::MAX << width } else { pattern };
    let mut bits = filled;
    let mut last = 0;
    for _ in 0..amount {
        last = bits & 1;
        bits = bits >> 1 | u128::from(sign) << 127;
    }
    if rounds {
        bits = bits.wrapping_add(last);
    }
    Shifted { negative: sign && bits >> 127 == 1, bits }
}

/// Moves lanes within 128 bits.
fn moving(o: &Operation) -> Option<Register> {
    if o.stem == "vldi" {
        let (value, bits) = constant(o.imm);
        return Some(o.lanes(bits, |_| value));
    }
    let bits = o.element(0)?.bits;
    let n = 128 / bits;
    let (d, j, k) = (
        |i: usize| o.d.unsigned(bits, i),
        |i: usize| o.j.unsigned(bits, i),
        |i: usize| o.k.unsigned(bits, i),
    );
    let imm = o.imm as usize;
    // `h` is the first lane of the 128-bit half, `i` the lane in it.
    let f: Box<dyn Fn(usize, usize) -> Number> = match o.stem.as_str() {
        "vpackev" => Box::new(|h, i| if i % 2 == 1 { j(h + i - 1) } else { k(h + i) }),
        "vpackod" => Box::new(|h, i| if i % 2 == 1 { j(h + i) } else { k(h + i + 1) }),
        "vpickev" => Box::new(|h, i| if i < n / 2 { k(h + 2 * i) } else { j(h + 2 * i - n) }),
        "vpickod" => Box::new(|h, i| if i < n / 2 { k(h + 2 * i + 1) } else { j(h + 2 * i - n + 1) }),
        "vilvl" => Box::new(|h, i| if i % 2 == 1 { j(h + i / 2) } else { k(h + i / 2) }),
        "vilvh" => Box::new(|h, i| if i % 2 == 1 { j(h + (n + i) / 2) } else { k(h + (n + i) / 2) }),
        "vreplve" => Box::new(|h, _| j(h + (o.general_k % n as u64) as usize)),
        "vreplvei" | "vrepl128vei" => Box::new(|h, _| j(h + imm)),
        "vreplgr2vr" => Box::new(|_, _| o.general_j.into()),
        "vextrins" => Box::new(|h, i| if i == (imm >> 4) % n { j(h + imm % 16 % n) } else { d(h + i) }),
        "vshuf" if bits == 8 => Box::new(|h, i| {
            let index = o.a.0[h + i] as usize % 32;
            if index < 16 { k(h + index) } else { j(h + index - 16) }
        }),
        "vshuf" => Box::new(|h, i| {
            let index = d(h + i) as usize % (2 * n);
            if index < n { k(h + index) } else { j(h + index - n) }
        }),
        "vshuf4i" if bits == 64 => Box::new(|h, i| {
            let index = imm >> (2 * i) & 3;
            if index >= 2 { j(h + index - 2) } else { d(h + index) }
        }),
        "vshuf4i" => Box::new(|h, i| j(h + i - i % 4 + (imm >> (2 * (i % 4)) & 3))),
        "vpermi" if bits == 32 => {
            Box::new(|h, i| if i < 2 { j(h + (imm >> (2 * i) & 3)) } else { d(h + (imm >> (2 * i) & 3)) })
        }
        "vbsll" => {
            Box::new(|h, _| from_128(|i| if i < imm % 16 * 8 { 0 } else { bit(j(h), i - imm % 16 * 8) }))
        }
        "vbsrl" => Box::new(|h, _| {
            from_128(|i| if i + imm % 16 * 8 > 127 { 0 } else { bit(j(h), i + imm % 16 * 8) })
        }),
        "vfrstp" | "vfrstpi" => Box::new(|h, i| {
            let negative = |i: &usize| bit(j(h + i), bits - 1) == 1;
            if i == k(h) as usize % n { (0..n).find(negative).unwrap_or(n) as Number } else { d(h + i) }
        }),
        "vmskltz" | "vmskgez" | "vmsknz" => {
            let set = |i: usize| match o.stem.as_str() {
                "vmskltz" => bit(j(i), bits - 1) == 1,
                "vmskgez" => bit(j(i), bits - 1) == 0,
                _ => j(i) != 0,
            };
            let mask = |half: usize| (0..n).map(|i| Number::from(set(half * n + i)) << i).sum();
            return Some(o.lanes(128, mask));
        }
        "vbitsel" => Box::new(|h, _| {
            from_128(|i| if bit(o.a.unsigned(128, h), i) == 1 { bit(k(h), i) } else { bit(j(h), i) })
        }),
        _ => return None,
    };
    Some(o.lanes(bits, |i| f(i - i % n, i % n)))
}

/// The constant that `vldi` repeats, and its width in bits, in the order of the definition's cases.
fn constant(imm: Number) -> (Number, usize) {
    let byte = imm & 0xff;
    let low_ten = imm & 0x3ff;
    let signed = if low_ten >= 0x200 { low_ten - 0x400 } else { low_ten };
    let digits: Vec<char> = format!("{byte:08b}").chars().collect();
    let digit = |i: usize| digits[7 - i];
    // The sign, the inverted highest exponent bit, copies of that bit, and six bits unchanged.
    let float = |copies: usize, zeros: usize| {
        let inverted = if digit(6) == '0' { '1' } else { '0' };
        let text: String = [digit(7), inverted]
            .into_iter()
            .chain(std::iter::repeat_n(digit(6), copies))
            .chain((0..6).rev().map(digit))
            .chain(std::iter::repeat_n('0', zeros))
            .collect();
        Number::from_str_radix(&text, 2).expect("binary digits")
    };
    match format!("{:05b}", imm >> 8 & 31).as_str() {
        mode if mode.starts_with("000") => (byte, 8),
        mode if mode.starts_with("001") => (signed, 16),
        mode if mode.starts_with("010") => (signed, 32),
        mode if mode.starts_with("011") => (signed, 64),
        "10000" => (byte, 32),
        "10001" => (byte * 0x100, 32),
        "10010" => (byte * 0x1_0000, 32),
        "10011" => (byte * 0x100_0000, 32),
        "10100" => (byte, 16),
        "10101" => (byte * 0x100, 16),
        "10110" => (byte * 0x100 + 0xff, 32),
        "10111" => (byte * 0x1_0000 + 0xffff, 32),
        "11000" => (byte, 8),
        "11001" => {
            let text: String = digits.iter().map(|d| d.to_string().repeat(8)).collect();
            (Number::from_str_radix(&text, 2).expect("binary digits"), 64)
        }
        "11010" => (float(5, 19), 32),
        "11011" => (float(5, 19), 64),
        "11100" => (float(8, 48), 64),
        mode => panic!("vldi has no mode {mode}"),
    }
}

/// Moves lanes across 256 bits, or from a general register.
fn crossing(o: &Operation) -> Option<Register> {
    if let Some(("vext2x", "v")) = o.stem.split_at_checked(6) {
        let (wide, narrow) = (o.element(0)?, o.element(1)?);
        return Some(o.lanes(wide.bits, |i| o.j.get(narrow, i)));
    }
    let bits = o.element(0)?.bits;
    let imm = o.imm as usize;
    let lane = |register: &Register, i| register.unsigned(bits, i);
    let f: Box<dyn Fn(usize) -> Number> = match o.stem.as_str() {
        "vinsgr2vr" => Box::new(|i| if i == imm { o.general_j.into() } else { lane(&o.d, i) }),
        "vreplve0" => Box::new(|_| lane(&o.j, 0)),
        "vinsve0" => Box::new(|i| if i == imm { lane(&o.j, 0) } else { lane(&o.d, i) }),
        "vpickve" => Box::new(|i| if i == 0 { lane(&o.j, imm) } else { 0 }),
        "vperm" => Box::new(|i| lane(&o.j, lane(&o.k, i) as usize % 8)),
        "vpermi" if bits == 64 => Box::new(|i| lane(&o.j, imm >> (2 * i) & 3)),
        "vpermi" if bits == 128 => Box::new(|i| match imm >> (4 * i) & 3 {
            index @ 0..2 => lane(&o.j, index),
            index => lane(&o.d, index - 2),
        }),
        "vhseli" => Box::new(|i| {
            let [low, high] = [lane(&o.j, 2 * (i / 2)), lane(&o.j, 2 * (i / 2) + 1)];
            if imm / [1, 2, 4, 8][i] % 2 == 1 { high } else { low }
        }),
        _ => return None,
    };
    Some(o.lanes(bits, f))
}
