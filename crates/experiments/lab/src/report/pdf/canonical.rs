//! Makes PDF documents reproducible: the converter writes fonts and resources in an order that differs from run to run.
//!
//! Source: ISO 32000-1, section 7.5 (file structure).

use std::collections::BTreeMap;

/// An indirect object: its text, and what follows the text, if it is a stream.
struct Object<'a> {
    text: String,
    stream: &'a [u8],
}

/// The document with sorted resources, and with its objects numbered and written in the order in which they are reached
/// from the root. A document of an unknown form stays as it is.
pub(super) fn canonical(document: Vec<u8>) -> Vec<u8> {
    rewritten(&document).unwrap_or(document)
}

fn rewritten(document: &[u8]) -> Option<Vec<u8>> {
    let table = number_after(document, find_last(document, b"startxref\n")?, b"startxref\n")?;
    let offsets = offsets(document.get(table..)?)?;
    let objects: BTreeMap<usize, Object<'_>> = offsets
        .iter()
        .map(|(number, at)| Some((*number, object(document, *number, *at)?)))
        .collect::<Option<_>>()?;
    let trailer = find_last(document, b"trailer\n")?;
    let trailer = std::str::from_utf8(document.get(trailer..find_last(document, b"startxref\n")?)?).ok()?;
    let mut order = Vec::new();
    let mut next: Vec<usize> = references(trailer).rev().collect();
    while let Some(number) = next.pop() {
        if !order.contains(&number) {
            order.push(number);
            next.extend(references(&objects.get(&number)?.text).rev());
        }
    }
    if order.len() != objects.len() {
        return None;
    }
    let new: BTreeMap<usize, usize> =
        order.iter().enumerate().map(|(index, old)| (*old, index + 1)).collect();
    let mut written = document[..*offsets.values().min()?].to_vec();
    let mut entries = String::new();
    for old in &order {
        entries += &format!("{:010} 00000 n\r\n", written.len());
        let Object { text, stream } = &objects[old];
        written.extend(format!("{} 0 obj\n{}", new[old], renumbered(text, &new)).into_bytes());
        written.extend(*stream);
        written.extend(b"\nendobj\n\n");
    }
    let table = written.len();
    let size = order.len() + 1;
    let trailer = renumbered(trailer, &new);
    written.extend(
        format!("xref\n0 {size}\n0000000000 65535 f\r\n{entries}{trailer}startxref\n{table}\n%%EOF")
            .into_bytes(),
    );
    Some(written)
}

fn find_last(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).rposition(|window| window == word)
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

/// The number that follows the word at `at`.
fn number_after(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    let digits = bytes.get(at + word.len()..)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Where each object is, from a cross-reference table of one section.
fn offsets(table: &[u8]) -> Option<BTreeMap<usize, usize>> {
    /// Bytes of an entry.
    const ENTRY: usize = 20;
    let entries = table.strip_prefix(b"xref\n0 ")?;
    let start = entries.iter().position(|byte| *byte == b'\n')? + 1;
    let count: usize = std::str::from_utf8(&entries[..start - 1]).ok()?.parse().ok()?;
    let entries = entries.get(start..start + count.checked_mul(ENTRY)?)?.chunks(ENTRY).enumerate();
    let used = entries.filter(|(_, entry)| entry.get(17) == Some(&b'n'));
    used.map(|(number, entry)| Some((number, std::str::from_utf8(&entry[..10]).ok()?.parse().ok()?)))
        .collect()
}

fn object(document: &[u8], number: usize, at: usize) -> Option<Object<'_>> {
    let rest = document.get(at..)?.strip_prefix(format!("{number} 0 obj\n").as_bytes())?;
    let (stream, end) = (find(rest, b"\nstream\n"), find(rest, b"\nendobj")?);
    let Some(begin) = stream.filter(|stream| *stream < end) else {
        return Some(Object { text: sorted(std::str::from_utf8(&rest[..end]).ok()?), stream: &[] });
    };
    let text = std::str::from_utf8(&rest[..begin]).ok()?;
    let length = number_after(text.as_bytes(), text.find("/Length ")?, b"/Length ")?;
    let end = begin + b"\nstream\n".len() + length;
    let after = b"\nendstream";
    rest.get(end..)?.starts_with(after).then_some(())?;
    Some(Object { text: sorted(text), stream: &rest[begin..end + after.len()] })
}

/// The text with numbered resources of a dictionary, such as `/fo1`, in the order of their names.
fn sorted(text: &str) -> String {
    let resource = |line: &&str| {
        let name = line.trim_start().strip_prefix('/').and_then(|line| line.split(' ').next()).unwrap_or("");
        let letters = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let number = name[letters.len()..].parse::<usize>().ok();
        (letters.to_string(), number)
    };
    let mut lines: Vec<&str> = text.split('\n').collect();
    for run in lines.chunk_by_mut(|one, other| resource(one).1.is_some() == resource(other).1.is_some()) {
        if resource(&run[0]).1.is_some() {
            run.sort_by_key(resource);
        }
    }
    lines.join("\n")
}

/// The numbers of the objects that the text refers to, each with its position in the text.
fn places(text: &str) -> impl DoubleEndedIterator<Item = (std::ops::Range<usize>, usize)> + '_ {
    let found: Vec<_> = text
        .match_indices(" 0 R")
        .filter_map(|(end, _)| {
            let digits = text[..end].bytes().rev().take_while(u8::is_ascii_digit).count();
            Some((end - digits..end, text[end - digits..end].parse().ok()?))
        })
        .collect();
    found.into_iter()
}

fn references(text: &str) -> impl DoubleEndedIterator<Item = usize> + '_ {
    places(text).map(|(_, number)| number)
}

fn renumbered(text: &str, new: &BTreeMap<usize, usize>) -> String {
    let mut text = text.to_string();
    let found: Vec<_> = places(&text).collect();
    for (place, number) in found.into_iter().rev() {
        let number = new.get(&number).copied().unwrap_or(number);
        text.replace_range(place, &number.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_an_unknown_form_stays_as_it_is() {
        assert_eq!(canonical(b"%PDF-1.7 and no table".to_vec()), b"%PDF-1.7 and no table");
    }

    #[test]
    fn numbered_resources_are_sorted_and_other_keys_stay() {
        let text = "<<\n  /fo10 1 0 R\n  /fo2 4 0 R\n>>\n/Type /Page\n/A 1";
        assert_eq!(sorted(text), "<<\n  /fo2 4 0 R\n  /fo10 1 0 R\n>>\n/Type /Page\n/A 1");
    }
}
