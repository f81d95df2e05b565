//! Demangles the names of functions. Source: the Itanium C++ ABI, section 5.1 (mangling); Rust RFC 2603
//! (symbol names v0). cpp_demangle and rustc-demangle implement them.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are truncated: a hostile mangled name may expand to gigabytes.
const MAX_NAME_BYTES: usize = 4096;

/// The demangled name of a symbol; the symbol itself if it is not mangled.
pub fn demangle(symbol: &str) -> String {
    let mut name = Limited::default();
    let written = if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        // The alternate format omits the hash.
        write!(name, "{rust:#}")
    } else if symbol.starts_with("_Z")
        && let Ok(cpp) = Symbol::new(symbol)
    {
        cpp.structured_demangle(&mut name, &DemangleOptions::new().no_return_type())
    } else {
        return symbol.into();
    };
    if !name.text.is_empty() && (written.is_ok() || name.is_cut) { name.text } else { symbol.into() }
}

/// Whether `wanted` names the function `function`: by its whole name, without parameters, or without namespaces.
pub fn is_name_of(wanted: &str, function: &str) -> bool {
    let plain = without_parameters(function);
    let ends = |name: &str| {
        name.strip_suffix(wanted).is_some_and(|before| before.is_empty() || before.ends_with("::"))
    };
    !wanted.is_empty() && (wanted == function || ends(plain) || ends(without_arguments(plain)))
}

/// A name without its parameters and what follows them.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    // The parentheses of an anonymous namespace, an outer function or a template argument.
    if name[end..].contains("::") || name[end..].contains('>') {
        return name;
    }
    let mut depth = 0;
    let start = name[..=end].char_indices().rev().find(|(_, c)| {
        depth += i32::from(*c == ')') - i32::from(*c == '(');
        depth == 0
    });
    start.map_or(name, |(at, _)| &name[..at])
}

/// A name without the template arguments at its end.
fn without_arguments(name: &str) -> &str {
    if !name.ends_with('>') {
        return name;
    }
    let mut depth = 0;
    let start = name.char_indices().rev().find(|(_, c)| {
        depth += i32::from(*c == '>') - i32::from(*c == '<');
        depth == 0
    });
    start.map_or(name, |(at, _)| &name[..at])
}

/// A text of at most [`MAX_NAME_BYTES`] bytes. A write beyond that limit truncates the text and fails.
#[derive(Default)]
struct Limited {
    text: String,
    is_cut: bool,
}

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = (MAX_NAME_BYTES - "…".len()).saturating_sub(self.text.len());
        if text.len() <= left && !self.is_cut {
            self.text.push_str(text);
            return Ok(());
        }
        if !std::mem::replace(&mut self.is_cut, true) {
            let end = (0..=left).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            self.text.push_str(&text[..end]);
            self.text.push('…');
        }
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (symbol, name) in [
            ("main", "main"),
            ("", ""),
            ("_Z", "_Z"),
            ("_ZN5store6insertEPKcm", "store::insert(char const*, unsigned long)"),
            ("_ZSt4sortIPiEvT_S1_", "std::sort<int*>(int*, int*)"),
            ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("quicksort.constprop.0", "quicksort.constprop.0"),
        ] {
            assert_eq!(demangle(symbol), name);
        }
    }

    #[test]
    fn a_function_is_named_without_parameters_and_namespaces() {
        let function = "store::Map<int (*)(char)>::insert<long>(std::pair<int, int>)";
        for wanted in [
            function,
            "store::Map<int (*)(char)>::insert<long>",
            "insert<long>",
            "insert",
            "Map<int (*)(char)>::insert<long>",
        ] {
            assert!(is_name_of(wanted, function), "{wanted}");
        }
        for wanted in ["", "sert<long>", "Map", "store"] {
            assert!(!is_name_of(wanted, function), "{wanted}");
        }
        assert!(is_name_of("f", "(anonymous namespace)::f(int) const"));
        assert!(is_name_of("A::operator()", "A::operator()(int)"));
        assert!(is_name_of("visit", "visit(void (*)(int))"));
        assert!(is_name_of("sort", "std::sort<int*>(int*, int*)"));
        assert!(is_name_of("std::sort", "std::sort<int*>(int*, int*)"));
        assert!(is_name_of("[program+0x400]", "[program+0x400]"));
    }

    #[test]
    fn a_name_that_grows_exponentially_is_cut() {
        // Each pair contains the previous pair twice.
        let pairs = "S_IS0_S0_E".repeat(40);
        let mut types = String::from("St4pairIiiE");
        for number in 0..40u32 {
            let last = if number == 0 { "S0_".into() } else { format!("S{}_", to_base_36(number)) };
            types += &format!("S_I{last}{last}E");
        }
        for symbol in [format!("_Z1f{types}"), format!("_Z1f{pairs}")] {
            assert!(demangle(&symbol).len() <= MAX_NAME_BYTES.max(symbol.len()));
        }
    }

    fn to_base_36(mut number: u32) -> String {
        let mut digits = Vec::new();
        while digits.is_empty() || number > 0 {
            digits.push(char::from_digit(number % 36, 36).unwrap().to_ascii_uppercase());
            number /= 36;
        }
        digits.iter().rev().collect()
    }

    proptest! {
        #[test]
        fn no_symbol_panics_or_grows_without_limit(start in "(_Z|_R|_ZN)?", symbol in "[ -~]{0,200}|[A-Z0-9_a-z]{0,400}") {
            let symbol = start + &symbol;
            prop_assert!(demangle(&symbol).len() <= MAX_NAME_BYTES.max(symbol.len()));
        }
    }
}
