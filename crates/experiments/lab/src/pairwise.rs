//! Selects a few points that cover all pairs of parameter values: each pair that occurs in some point occurs in a
//! selected one.
//!
//! Source: pairwise testing, D. R. Kuhn, D. R. Wallace and A. M. Gallo, Software Fault Interactions and Implications for
//! Software Testing, IEEE TSE 30(6), 2004: most failures need one value or two. The selection is the greedy set cover.

use std::collections::{BinaryHeap, HashMap, HashSet};

/// A value of a parameter: the column and the number of the value in it.
type Value = (u32, u32);

/// Indices of the selected rows, at most `max`, and whether they cover all pairs. A row has the text of a value for each
/// column; the columns of all rows are the same.
pub fn select(rows: &[Vec<String>], max: usize) -> (Vec<usize>, bool) {
    let rows = numbered(rows);
    let mut covered: HashSet<(Value, Value)> = HashSet::new();
    // A row's count of uncovered pairs only decreases, so a recomputed count that is still the largest is the maximum.
    // The first row wins a tie.
    let mut candidates: BinaryHeap<_> =
        rows.iter().enumerate().map(|(index, row)| (pairs(row).count(), std::cmp::Reverse(index))).collect();
    let mut selected = Vec::new();
    while let Some((count, std::cmp::Reverse(index))) = candidates.pop() {
        let uncovered = pairs(&rows[index]).filter(|pair| !covered.contains(pair)).count();
        if uncovered == 0 {
            continue;
        }
        if uncovered < count {
            candidates.push((uncovered, std::cmp::Reverse(index)));
            continue;
        }
        if selected.len() == max {
            return (selected, false);
        }
        covered.extend(pairs(&rows[index]));
        selected.push(index);
    }
    (selected, true)
}

/// The rows with a number for each value.
fn numbered(rows: &[Vec<String>]) -> Vec<Vec<Value>> {
    let mut numbers: Vec<HashMap<&str, u32>> = Vec::new();
    let mut number = |column: usize, value| {
        numbers.resize_with(numbers.len().max(column + 1), HashMap::new);
        let known = &mut numbers[column];
        let next = known.len() as u32;
        (column as u32, *known.entry(value).or_insert(next))
    };
    rows.iter()
        .map(|row| row.iter().enumerate().map(|(column, value)| number(column, &**value)).collect())
        .collect()
}

/// All pairs of values of a row. A value also forms a pair with itself, so that a row with one value has a pair. A row
/// without values has one fictitious pair.
fn pairs(row: &[Value]) -> impl Iterator<Item = (Value, Value)> + '_ {
    let none = row.is_empty().then_some(((0, 0), (0, 0)));
    none.into_iter().chain(
        row.iter()
            .enumerate()
            .flat_map(|(index, first)| row[index..].iter().map(move |second| (*first, *second))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(rows: &[Vec<u8>]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(u8::to_string).collect()).collect()
    }

    fn all_pairs(rows: &[Vec<String>]) -> HashSet<(Value, Value)> {
        numbered(rows).iter().flat_map(|row| pairs(row).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn few_rows_cover_all_pairs_of_many_flags() {
        let rows: Vec<Vec<u8>> = (0..1 << 10)
            .map(|bits| (0..10).map(|bit| bits >> bit & 1).map(|b: u32| b as u8).collect())
            .collect();
        let (selected, complete) = select(&text(&rows), 256);
        assert!(complete && selected.len() <= 16, "{selected:?}");
    }

    #[test]
    fn all_rows_of_two_parameters_are_selected() {
        let rows: Vec<Vec<u8>> = (0..144).map(|n| vec![n / 12, n % 12]).collect();
        assert_eq!(select(&text(&rows), 256).0.len(), 144);
        let (selected, complete) = select(&text(&rows), 100);
        assert!(!complete && selected.len() == 100);
    }

    #[test]
    fn a_row_without_parameters_is_selected_once() {
        assert_eq!(select(&text(&[vec![], vec![]]), 256), (vec![0], true));
        assert_eq!(select(&[], 256), (vec![], true));
    }

    proptest! {
        #[test]
        fn all_pairs_that_occur_are_covered(rows in proptest::collection::vec(proptest::collection::vec(0..4u8, 5), 0..60)) {
            let rows = text(&rows);
            let (selected, complete) = select(&rows, 256);
            let chosen: Vec<_> = selected.iter().map(|&index| rows[index].clone()).collect();
            prop_assert!(complete);
            // Numbers depend on the order of the rows, so append all rows to the selected ones and compare.
            let together: Vec<_> = chosen.iter().chain(&rows).cloned().collect();
            let numbered = numbered(&together);
            let of = |rows: &[Vec<Value>]| rows.iter().flat_map(|row| pairs(row).collect::<Vec<_>>()).collect::<HashSet<_>>();
            prop_assert_eq!(of(&numbered[..chosen.len()]), of(&numbered));
            prop_assert!(selected.len() <= all_pairs(&rows).len());
        }
    }
}
