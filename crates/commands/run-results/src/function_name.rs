//! Function names of bounded length. Demangled names of C++ templates may have thousands of characters, most of them template
//! arguments and parameters.

/// The name with at most `chars` characters: complete if it fits, then without template arguments and parameters, then
/// without its first namespaces, then cut.
pub fn abbreviate(name: &str, chars: usize) -> String {
    let fits = |name: &str| name.chars().nth(chars).is_none();
    if fits(name) {
        return name.into();
    }
    let collapsed = collapse(name);
    if fits(&collapsed) {
        return collapsed;
    }
    let mut last = collapsed.as_str();
    while let Some((_, rest)) = last.split_once("::") {
        if rest.chars().nth(chars.saturating_sub("…::".chars().count())).is_none() {
            return format!("…::{rest}");
        }
        last = rest;
    }
    last.chars().take(chars.saturating_sub(1)).chain(['…']).collect()
}

/// Replaces text between brackets by `…`, except in `(anonymous namespace)` and in `operator()`.
fn collapse(name: &str) -> String {
    const ANONYMOUS: &str = "(anonymous namespace)";
    const OPERATORS: [&str; 9] = ["<<=", ">>=", "<=>", "->*", "<<", ">>", "<=", ">=", "->"];
    let (mut collapsed, mut depth, mut rest) = (String::new(), 0u32, name);
    while let Some(next) = rest.chars().next() {
        let is_operator = depth == 0 && is_after_operator(&collapsed);
        let whole = match next {
            '(' if depth == 0 && rest.starts_with(ANONYMOUS) => ANONYMOUS,
            '(' if is_operator && rest.starts_with("()") => "()",
            '<' | '>' | '-' if is_operator => {
                OPERATORS.into_iter().find(|operator| rest.starts_with(operator)).unwrap_or(&rest[..1])
            }
            _ => "",
        };
        if !whole.is_empty() {
            collapsed += whole;
            rest = &rest[whole.len()..];
            continue;
        }
        match next {
            '<' | '(' | '{' | '[' => {
                if depth == 0 {
                    collapsed.push(next);
                    collapsed.push('…');
                }
                depth += 1;
            }
            // The `>` of `->` closes no bracket.
            '>' if rest.len() < name.len() && name[..name.len() - rest.len()].ends_with('-') => {}
            '>' | ')' | '}' | ']' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    collapsed.push(next);
                }
            }
            _ if depth == 0 => collapsed.push(next),
            _ => {}
        }
        rest = &rest[next.len_utf8()..];
    }
    collapsed
}

fn is_after_operator(before: &str) -> bool {
    let Some(before) = before.strip_suffix("operator") else { return false };
    !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_names_lose_arguments_first() {
        for (name, shown) in [
            ("main", "main"),
            ("std::sort<int*>(int*, int*)", "std::sort<…>(…)"),
            ("a::Map<std::pair<int, long>>::insert(int (*)(char))", "a::Map<…>::insert(…)"),
            ("(anonymous namespace)::f(int, int)", "(anonymous namespace)::f(…)"),
            ("operator<< <char>(std::ostream&, char const*)", "operator<< <…>(…)"),
            ("Key<int>::operator()(int, long) const", "Key<…>::operator()(…) const"),
            ("Pointer<a::b, c>::operator->() const volatile", "Pointer<…>::operator->(…) const volatile"),
            ("main::{lambda(auto:1 const&)#2}::call(long)", "main::{…}::call(…)"),
            ("<alloc::vec::Vec<T> as Trait>::method", "<…>::method"),
        ] {
            let chars = shown.chars().count().max(if name == shown { 1 } else { 0 });
            assert_eq!(abbreviate(name, chars), shown);
        }
        assert_eq!(abbreviate("a_long_name_of_c", 8), "a_long_…");
        assert_eq!(abbreviate("outer::inner::Map<int>::insert(int)", 22), "…::Map<…>::insert(…)");
        assert_eq!(abbreviate("outer::inner::Map<int>::insert(int)", 6), "inser…");
    }

    proptest! {
        #[test]
        fn every_name_fits(name in "[a-z<>(){}\\[\\]:, *&-]{0,80}|operator[<>()-]{0,9}|.{0,40}", chars in 1usize..60) {
            let shown = abbreviate(&name, chars);
            prop_assert!(shown.chars().count() <= chars, "{}", shown);
            if name.chars().count() <= chars {
                prop_assert_eq!(shown, name);
            }
        }
    }
}
