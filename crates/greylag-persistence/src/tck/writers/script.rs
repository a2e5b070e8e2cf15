//! What a writer does, step by step, and in which orders the steps of two can come.

/// By what right a writer claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Generation(u64),
    /// By the epoch that it read before.
    Seen,
}

/// One step. What rests on a claim that was refused is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the head, for a claim by what was seen.
    Look,
    Claim,
    /// A claim whose answer is lost.
    ClaimUnheard,
    /// The same claim once more: a retry, or a copy that comes late.
    ClaimAgain,
    Append,
    /// An append whose answer is lost.
    Unheard,
    /// The last append once more, as it was.
    Retry,
    /// An append that is kept on its way …
    Post,
    /// … and comes now.
    Deliver,
    /// Another incarnation of the writer, which knows nothing but its right.
    Restart,
    /// Saves what it knows.
    Snapshot,
    /// Deletes what its snapshot covers.
    Delete,
    DeleteAll,
}

pub(super) type Script = Vec<Step>;

/// The script for this right: generations need no look.
pub(super) fn under(script: &[Step], right: Right) -> Script {
    script.iter().copied().filter(|step| *step != Step::Look || right == Right::Seen).collect()
}

/// Every order in which so many steps of one and so many of the other can come; `true` is the other's.
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
