//! Contribution of each member of a set: alone, as the last one added, and as the Shapley value.
//!
//! Source: L. S. Shapley, A value for n-person games, 1953, equation 13.

use serde::Serialize;

/// Maximum number of members. A set of ten has 1024 subsets, each of which needs a run.
pub const MAX_MECHANISMS: usize = 10;

/// The value of every subset of a set of members. Subsets are bit masks: bit `i` represents member `i`.
#[derive(Clone, Debug, PartialEq)]
pub struct Game {
    members: usize,
    values: Vec<f64>,
}

/// Contribution of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Contribution {
    /// Its value added to the empty set.
    pub alone: f64,
    /// Its value added to all others.
    pub last: f64,
    /// Its value added on average over all orders of the members: the Shapley value.
    pub shapley: f64,
}

impl Game {
    /// Creates a game in which subset `s` has the value `values[s]`. `None` unless there are 2^n finite values with n
    /// at most [`MAX_MECHANISMS`].
    pub fn new(values: Vec<f64>) -> Option<Self> {
        let members = values.len().checked_ilog2()? as usize;
        let whole = values.len() == 1 << members && members <= MAX_MECHANISMS;
        (whole && values.iter().all(|v| v.is_finite())).then_some(Self { members, values })
    }

    /// Number of members.
    pub const fn members(&self) -> usize {
        self.members
    }

    /// Value of a subset.
    pub fn value(&self, subset: usize) -> f64 {
        self.values[subset]
    }

    /// Value of the empty set.
    pub fn none(&self) -> f64 {
        self.values[0]
    }

    /// Value of the whole set.
    pub fn all(&self) -> f64 {
        self.values[self.values.len() - 1]
    }

    /// Contribution of each member. The Shapley values add up to [`Self::all`] minus [`Self::none`].
    pub fn contributions(&self) -> Vec<Contribution> {
        (0..self.members).map(|member| self.contribution(member)).collect()
    }

    fn contribution(&self, member: usize) -> Contribution {
        let bit = 1 << member;
        let whole = self.values.len() - 1;
        let adds = |subset: usize| self.values[subset | bit] - self.values[subset];
        let without = (0..self.values.len()).filter(|subset| subset & bit == 0);
        let shapley = without.map(|subset| self.weight(subset.count_ones() as usize) * adds(subset)).sum();
        Contribution { alone: adds(0), last: adds(whole ^ bit), shapley }
    }

    /// Fraction of all orders in which exactly a given subset of `before` members precedes a given other member.
    fn weight(&self, before: usize) -> f64 {
        let others = self.members - 1;
        let subsets =
            (0..before).fold(1.0, |count, index| count * (others - index) as f64 / (index + 1) as f64);
        1.0 / (self.members as f64 * subsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn game() -> impl Strategy<Value = Game> {
        (0usize..=5)
            .prop_flat_map(|n| prop::collection::vec(-1000.0..1000.0f64, 1 << n))
            .prop_map(|v| Game::new(v).unwrap())
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs())) * 1000.0
    }

    fn shapley(game: &Game) -> Vec<f64> {
        game.contributions().iter().map(|c| c.shapley).collect()
    }

    /// `subset` with the bits `a` and `b` swapped.
    fn exchanged(subset: usize, a: usize, b: usize) -> usize {
        let (has_a, has_b) = (subset >> a & 1, subset >> b & 1);
        subset & !(1 << a) & !(1 << b) | has_a << b | has_b << a
    }

    /// All permutations of `0..n`.
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let shorter = orders(n - 1);
        let insert = |order: &Vec<usize>, at: usize| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        };
        shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
    }

    proptest! {
        #[test]
        fn shapley_values_sum_to_the_contribution_of_the_whole_set(game in game()) {
            prop_assert!(near(shapley(&game).iter().sum::<f64>(), game.all() - game.none()));
        }

        #[test]
        fn interchangeable_members_have_equal_values(game in game(), a in 0usize..5, b in 0usize..5) {
            let (a, b) = (a % game.members().max(1), b % game.members().max(1));
            prop_assume!(a != b);
            let same = |s: usize| (game.value(s) + game.value(exchanged(s, a, b))) / 2.0;
            let values = shapley(&Game::new((0..1 << game.members()).map(same).collect()).unwrap());
            prop_assert!(near(values[a], values[b]), "{values:?}");
        }

        #[test]
        fn a_member_that_changes_nothing_has_the_value_zero(game in game(), member in 0usize..5) {
            prop_assume!(game.members() > 0);
            let member = member % game.members();
            let values = (0..1 << game.members()).map(|s: usize| game.value(s & !(1 << member))).collect();
            let contribution = Game::new(values).unwrap().contributions()[member];
            prop_assert_eq!(contribution, Contribution::default());
        }

        #[test]
        fn the_values_of_a_sum_of_games_are_the_sums_of_the_values(
            (one, other) in (0usize..=5).prop_flat_map(|n| {
                let values = prop::collection::vec(-1000.0..1000.0f64, 1 << n);
                (values.clone(), values)
            })
        ) {
            let sum = Game::new(one.iter().zip(&other).map(|(a, b)| a + b).collect()).unwrap();
            let [one, other] = [one, other].map(|values| shapley(&Game::new(values).unwrap()));
            for (member, value) in shapley(&sum).into_iter().enumerate() {
                prop_assert!(near(value, one[member] + other[member]));
            }
        }

        #[test]
        fn the_values_are_the_means_over_all_orders(game in game()) {
            let orders = orders(game.members());
            let mut sums = vec![0.0; game.members()];
            for order in &orders {
                let mut before = 0;
                for member in order {
                    sums[*member] += game.value(before | 1 << member) - game.value(before);
                    before |= 1 << member;
                }
            }
            for (value, sum) in shapley(&game).into_iter().zip(sums) {
                prop_assert!(near(value, sum / orders.len() as f64));
            }
        }
    }

    #[test]
    fn in_the_glove_game_the_only_left_glove_is_worth_two_thirds() {
        // The textbook's glove game: a pair is worth 1, and member 0 has the left glove.
        let worth = |s: usize| f64::from(u8::from(s & 1 == 1 && s & 6 != 0));
        let values = shapley(&Game::new((0..8).map(worth).collect()).unwrap());
        assert!(near(values[0], 2.0 / 3.0) && near(values[1], 1.0 / 6.0) && near(values[2], 1.0 / 6.0));
    }

    #[test]
    fn an_invalid_game_is_rejected() {
        assert_eq!(Game::new(Vec::new()), None);
        assert_eq!(Game::new(vec![0.0; 3]), None);
        assert_eq!(Game::new(vec![0.0, f64::NAN]), None);
        assert_eq!(Game::new(vec![0.0; 2048]), None);
    }
}
