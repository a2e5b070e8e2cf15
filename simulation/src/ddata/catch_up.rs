//! A replica that reports itself as caught up must hold all earlier entries.

use std::time::Duration;

use greylag_crdt::GCounter;
use greylag_ddata::{Key, Lifecycle, ReplicaStatus, WriteLevel};
use greylag_testkit::network::Link;

use super::faults;
use super::world::World;

const MS: Duration = Duration::from_millis(1);
const ENTRIES: u64 = 300;

/// Even if messages of its rounds were lost, duplicated or overtaken, a new process that calls itself caught up holds
/// every entry; otherwise it would hide a confirmed write from a majority read. Source: ddata G13.
pub(super) fn history(seed: u64) -> World {
    let mut world = faults::quiet(seed);
    // The members load their disks first.
    world.run_for(10 * MS);
    for id in 1..=ENTRIES {
        let (mut out, now) = (Vec::new(), world.now());
        let key = Key::<GCounter>::new(format!("x{id}")).expect("a short id");
        let core = &mut world.processes[1].core;
        core.update(now, 0, id, &key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, id), &mut out)
            .expect("a sound update");
        world.perform(1, out);
    }
    world.run_for(5_000 * MS);
    world.net.set_default_link(Link { delay: (MS, 80 * MS), loss: 0.05, duplication: 0.5, reorder: true });
    world.kill(0);
    let fresh = world.join(0, ReplicaStatus::Up);
    let caught_up = |world: &World| *world.processes[fresh].core.lifecycle() == Lifecycle::Running;
    if !world.run_until(120_000 * MS, caught_up) {
        world.breaks("a new replica catches up (ddata G13)", format!("{fresh} never did"));
    }
    let (held, there) = (world.processes[fresh].core.digests(), world.processes[1].core.digests());
    if held != there {
        let what = format!("it has {} of {} entries", held.len(), there.len());
        world.breaks("who has caught up holds everything (ddata G13)", what);
    }
    world
}
