//! Compares and joins sets that only grow, range by range. Source: ddata G12.

use super::{GSet, digest_of};
use crate::causality::context::Context;
use crate::data::ReplicatedData as _;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT, ascending};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::ranges::{KeyRange, Part, RangeSum, Ranged, check_bounds, context_to_bytes, cuts, to_bytes};

fn digest<T: Element>(element: &T, (): &()) -> Digest {
    digest_of(element)
}

impl<T: Element> GSet<T> {
    fn sum_between(&self, from: Option<&T>, to: Option<&T>) -> RangeSum {
        self.elements.sum(from, to, &digest)
    }
}

impl<T: Element> Ranged for GSet<T> {
    fn keys(&self) -> usize {
        self.len()
    }

    fn whole(&self) -> RangeSum {
        RangeSum { count: self.len() as u64, total: self.digest() }
    }

    fn compute_sums(&self, most: usize) -> bool {
        self.elements.compute_sums(most, &digest)
    }

    fn sum(&self, range: &KeyRange) -> Result<RangeSum, DecodeError> {
        let (from, to) = range.decode::<T>()?;
        Ok(self.sum_between(from.as_ref(), to.as_ref()))
    }

    fn split(&self, range: &KeyRange, most: usize) -> Result<Vec<(KeyRange, RangeSum)>, DecodeError> {
        let (from, to) = range.decode::<T>()?;
        let before = from.as_ref().map_or(0, |from| self.sum_between(None, Some(from)).count);
        let count = self.sum_between(from.as_ref(), to.as_ref()).count;
        let cuts = cuts(range, (before, count), most, |rank| self.elements.key_at(rank, &digest).cloned());
        cuts.into_iter().map(|cut| Ok((cut.clone(), self.sum(&cut)?))).collect()
    }

    fn context_bytes(&self) -> Vec<u8> {
        context_to_bytes(&Context::new())
    }

    fn part(&self, range: &KeyRange, max_bytes: usize) -> Result<Part, DecodeError> {
        let (from, to) = range.decode::<T>()?;
        let (mut elements, mut count, mut next) = (Encoder::new(), 0_u64, None);
        for (element, ()) in self.elements.iter_from(from.as_ref()) {
            if to.as_ref().is_some_and(|to| to <= element) {
                break;
            }
            if count > 0 && elements.len() >= max_bytes {
                next = Some(to_bytes(element));
                break;
            }
            element.encode(&mut elements);
            count += 1;
        }
        let mut out = Encoder::new();
        out.u8(FORMAT);
        out.u64(count);
        let mut bytes = out.finish();
        bytes.append(&mut elements.finish());
        let range = KeyRange { from: range.from.clone(), to: next.or_else(|| range.to.clone()) };
        Ok(Part { range, bytes })
    }

    fn join_part(&mut self, _: &Context, part: &Part) -> Result<(), DecodeError> {
        let (from, to) = part.range.decode::<T>()?;
        let (mut inp, mut elements) = (Decoder::new(&part.bytes), Vec::new());
        inp.format()?;
        ascending(&mut inp, |inp| {
            let element = T::decode(inp)?;
            elements.push(element.clone());
            Ok(element)
        })?;
        inp.finish()?;
        check_bounds(elements.iter(), from.as_ref(), to.as_ref())?;
        self.tracker.merged();
        for element in elements {
            self.insert(element);
        }
        Ok(())
    }

    fn finish_parts(&mut self, _: &Context) {}
}
