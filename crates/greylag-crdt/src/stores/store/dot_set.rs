//! Dots without values.

use super::{
    Changes, DotSet, Edit, Join, Store, StoreMut, Whole, decode_dot, edited_by_store_mut, encode_dot, push_dot,
    whole_scope,
};
use crate::causality::cx::UpdateCx;
use crate::causality::replica::Dot;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::pruning::rename::Moves;
use crate::stores::small_list::SmallList;

impl StoreMut<'_, DotSet> {
    /// Whether the flag is on.
    pub fn enabled(&self) -> bool {
        self.store().is_some()
    }

    /// Switches the flag on, which wins over every switching off that has not seen it. Also a change if the flag is on.
    pub fn switch_on(&mut self, cx: &mut UpdateCx<'_>) {
        let drawn = DotSet::single(cx.draw_dot());
        self.0.apply(cx, Edit { patch: drawn.clone(), drawn });
    }

    /// Switches the flag off as far as this replica sees it. Returns whether the flag was on.
    pub fn switch_off(&mut self, cx: &mut UpdateCx<'_>) -> bool {
        let was_on = self.enabled();
        if was_on {
            self.0.apply(cx, Edit::removal(DotSet::default()));
        }
        was_on
    }
}

impl Store for DotSet {
    const TAG: TypeTag = TypeTag::new("dots");

    whole_scope!();
    edited_by_store_mut!(Self);

    fn patch(&mut self, patch: Self, changes: &mut Changes) {
        changes.note(self, &patch);
        *self = patch;
    }

    fn join(&mut self, other: &Self, _: &Whole, join: &mut Join<'_>) -> bool {
        if self == other {
            return false;
        }
        let (own, theirs) = (self.dots(), other.dots());
        if let ([], [only]) = (own, theirs) {
            let is_new = !join.own.contains(*only);
            if is_new {
                self.patch(other.clone(), &mut join.changes);
            }
            return is_new;
        }
        let kept = own.iter().filter(|dot| !join.theirs.contains(**dot) || theirs.contains(*dot));
        let added = theirs.iter().filter(|dot| !join.own.contains(**dot) && !own.contains(*dot));
        let mut dots: SmallList<Dot> = kept.chain(added).copied().collect();
        dots.sort_unstable();
        if *dots == *own {
            return false;
        }
        self.patch(Self(dots), &mut join.changes);
        true
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn leaves(&self) -> usize {
        self.dots().len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.dots().iter().copied().for_each(visit);
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        if self.is_empty() {
            return Digest::default();
        }
        let length = path.len();
        self.dots().iter().for_each(|dot| push_dot(path, *dot));
        let digest = Digest::of(path);
        path.truncate(length);
        digest
    }

    fn reads_like(&self, other: &Self) -> bool {
        self.is_empty() == other.is_empty()
    }

    fn rename(&mut self, moves: &Moves) -> bool {
        if self.dots().iter().all(|dot| moves.target(*dot).is_none()) {
            return false;
        }
        let mut dots: Vec<Dot> = self.dots().iter().map(|dot| moves.target(*dot).unwrap_or(*dot)).collect();
        dots.sort_unstable();
        dots.dedup();
        *self = Self::of(dots);
        true
    }

    fn with_fresh_dots(&self, cx: &mut UpdateCx<'_>, drawn: &mut Vec<Dot>) -> Self {
        if self.is_empty() {
            return Self::default();
        }
        let dot = cx.draw_dot();
        drawn.push(dot);
        Self::single(dot)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.dots().len() as u64);
        self.dots().iter().for_each(|dot| encode_dot(*dot, out));
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut dots = Vec::new();
        ascending(inp, |inp| {
            let dot = decode_dot(inp)?;
            dots.push(dot);
            Ok(dot)
        })?;
        Ok(Self::of(dots))
    }
}
