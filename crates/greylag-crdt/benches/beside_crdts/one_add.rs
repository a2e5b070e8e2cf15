//! Measures one add to a set of `content` elements, as a replicator does it. Source: ddata H4.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use greylag_crdt::{Change, Lineage, OrSet, ReplicatedData};

use crate::measure::median;
use crate::sides::{GreylagSide, Side as _};

/// Times the add on a clone with its delta and digest, and at another replica decoding, joining into a clone, and
/// digest.
pub(crate) fn measure(out: &mut impl io::Write, content: u64) -> io::Result<()> {
    let side = GreylagSide::<OrSet<u64>, _>::new(2, content, OrSet::add);
    let mut set = side.zero(0);
    side.write(&mut set, 0, 0..content);
    let mut copy = side.copy(&set);
    let (mut adds, mut applies, mut bytes) = (Vec::new(), Vec::new(), 0);
    for element in content..content + 1_001 {
        let began = Instant::now();
        let mut changed = set.clone();
        changed.begin_change(Lineage(element));
        side.write(&mut changed, 0, [element].into_iter());
        let Change::Delta(delta) = changed.take_change(Lineage(element)) else { continue };
        black_box(changed.digest());
        adds.push(began.elapsed());
        let encoded = OrSet::<u64>::delta_to_bytes(&delta);
        set = changed;
        let began = Instant::now();
        let delta = OrSet::<u64>::delta_from_bytes(&encoded).expect("it decodes");
        let mut joined = copy.clone();
        joined.merge_delta(&delta).expect("it joins");
        black_box(joined.digest());
        applies.push(began.elapsed());
        (copy, bytes) = (joined, encoded.len());
    }
    assert!(set == copy && set.digest() == copy.digest(), "both hold the same");
    let (add, apply) = (median(adds), median(applies));
    writeln!(out, "add to an OrSet of {content:>9}: {add:>6.2} us, delta {bytes} bytes, applied in {apply:.2} us")
}
