//! The scripts of writers, step by step, and the orders of two writers' steps.

/// The right by which a writer claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Generation(u64),
    /// The epoch that it read before.
    Seen,
}

/// One step. Steps that need a refused claim are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the head, for a claim by the epoch seen.
    Look,
    Claim,
    /// A claim whose answer is lost.
    ClaimUnheard,
    /// The same claim once more: a retry, or a late duplicate.
    ClaimAgain,
    Append,
    /// An append whose answer is lost.
    Unheard,
    /// The last append once more, unchanged.
    Retry,
    /// An append that stays under way …
    Post,
    /// … and arrives now.
    Deliver,
    /// Restarts the writer as another incarnation, which knows only its right.
    Restart,
    /// Saves the writer's state.
    Snapshot,
    /// Deletes the events that the writer's snapshot covers.
    Delete,
    DeleteAll,
}

pub(super) type Script = Vec<Step>;

/// The script for this right: without `Look` under generations.
pub(super) fn under(script: &[Step], right: Right) -> Script {
    script.iter().copied().filter(|step| *step != Step::Look || right == Right::Seen).collect()
}

/// Every order of this number of steps of one writer and of the other; `true` is a step of the other.
pub(super) fn orders(one: usize, other: usize) -> Vec<Vec<bool>> {
    if one == 0 || other == 0 {
        return vec![vec![one == 0; one + other]];
    }
    let first = |is_other: bool, rest: Vec<Vec<bool>>| {
        rest.into_iter().map(move |rest| [vec![is_other], rest].concat()).collect::<Vec<_>>()
    };
    [first(false, orders(one - 1, other)), first(true, orders(one, other - 1))].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_are_there_once() {
        let mut all = orders(4, 3);
        assert_eq!(all.len(), 35);
        assert!(all.iter().all(|order| order.iter().filter(|is_other| **is_other).count() == 3));
        all.sort();
        all.dedup();
        assert_eq!((all.len(), orders(0, 2), orders(2, 0)), (35, vec![vec![true; 2]], vec![vec![false; 2]]));
    }
}
