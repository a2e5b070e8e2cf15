//! Random uses, ends, limits and vetoes, compared with models that keep and search whole vectors.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{FrequencySketch, HillClimbing, ReplacementPolicy};
use super::{Passivation, Watched};

#[derive(Debug, Clone, Copy)]
enum Step {
    Touch(u32),
    End(u32),
    Limit(usize),
    Veto(u32, bool),
}

fn steps(vetoes: bool) -> impl Strategy<Value = Vec<Step>> {
    let id = 0..24u32;
    let step = prop_oneof![
        12 => id.clone().prop_map(Step::Touch),
        1 => id.clone().prop_map(Step::End),
        1 => (1..12usize).prop_map(Step::Limit),
        3 => (id, any::<bool>()).prop_map(move |(id, veto)| Step::Veto(id, veto && vetoes)),
    ];
    vec(step, 1..300)
}

/// How a model orders its slots.
#[derive(Debug, Clone)]
enum Kind {
    /// Tenths of the limit, by level; empty for one level.
    Levels(Vec<usize>),
    MostRecent,
    Frequency {
        aging: bool,
    },
}

#[derive(Debug)]
struct Model {
    kind: Kind,
    limit: usize,
    /// The slots of each level, the earliest first.
    levels: Vec<Vec<u32>>,
    /// Uses and priority of each slot.
    uses: BTreeMap<u32, (u64, u64)>,
    age: u64,
    vetoes: BTreeSet<u32>,
}

impl Model {
    fn new(kind: &Kind, limit: usize) -> Self {
        let levels = if let Kind::Levels(tenths) = kind { tenths.len().max(1) } else { 1 };
        let (uses, vetoes) = (BTreeMap::new(), BTreeSet::new());
        Self { kind: kind.clone(), limit, levels: vec![vec![]; levels], uses, age: 0, vetoes }
    }

    fn len(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    fn remove(&mut self, id: u32) {
        self.levels.iter_mut().for_each(|level| level.retain(|other| *other != id));
    }

    fn victim(&self) -> Option<u32> {
        let free = |id: &&u32| !self.vetoes.contains(id);
        match self.kind {
            Kind::Levels(_) => self.levels.iter().flatten().find(free).copied(),
            Kind::MostRecent => self.levels[0].iter().rev().find(free).copied(),
            // `min_by_key` takes the first of equals, and the earliest come first.
            Kind::Frequency { .. } => self.levels[0].iter().filter(free).min_by_key(|id| self.uses[id].1).copied(),
        }
    }

    fn evict_to(&mut self, most: usize) -> Vec<u32> {
        let mut victims = Vec::new();
        while self.len() > most {
            let Some(victim) = self.victim() else { break };
            self.remove(victim);
            self.age = self.uses[&victim].1;
            victims.push(victim);
        }
        victims
    }

    fn trim(&mut self) {
        let Kind::Levels(tenths) = &self.kind else { return };
        for level in (1..tenths.len()).rev() {
            while self.levels[level].len() > tenths[level] * self.limit / 10 {
                let id = self.levels[level].remove(0);
                self.levels[level - 1].push(id);
            }
        }
    }

    fn touch(&mut self, id: u32) -> Vec<u32> {
        let level = self.levels.iter().position(|level| level.contains(&id));
        let victims = if level.is_none() { self.evict_to(self.limit - 1) } else { vec![] };
        let count = if level.is_none() { 1 } else { self.uses[&id].0 + 1 };
        let age = if matches!(self.kind, Kind::Frequency { aging: true }) { self.age } else { 0 };
        self.uses.insert(id, (count, count + age));
        self.remove(id);
        let level = level.map_or(0, |level| (level + 1).min(self.levels.len() - 1));
        self.levels[level].push(id);
        self.trim();
        victims
    }

    fn take(&mut self, step: Step) -> Vec<u32> {
        match step {
            Step::Touch(id) => self.touch(id),
            Step::End(id) => {
                self.remove(id);
                self.vetoes.remove(&id);
                vec![]
            }
            Step::Limit(limit) => {
                self.limit = limit;
                self.trim();
                self.evict_to(limit)
            }
            Step::Veto(id, true) => {
                self.vetoes.insert(id);
                vec![]
            }
            Step::Veto(id, false) => {
                let live = self.levels.iter().flatten().any(|other| *other == id);
                if self.vetoes.remove(&id) && live { self.evict_to(self.limit) } else { vec![] }
            }
        }
    }
}

fn take(shard: &mut Watched, step: Step) -> Vec<u32> {
    match step {
        Step::Touch(id) => shard.touch(id),
        Step::End(id) => {
            shard.end(id);
            vec![]
        }
        Step::Limit(limit) => shard.limit(limit),
        Step::Veto(id, veto) => shard.veto(id, veto),
    }
}

fn plain() -> Vec<(Passivation, Kind)> {
    let lru = || Passivation::least_recently_used(5);
    vec![
        (lru(), Kind::Levels(vec![])),
        (lru().segmented(2, &[0.2, 0.8]), Kind::Levels(vec![2, 8])),
        (lru().segmented(3, &[0.2, 0.3, 0.5]), Kind::Levels(vec![2, 3, 5])),
        (lru().segmented(3, &[0.0, 0.5, 0.5]), Kind::Levels(vec![0, 5, 5])),
        (lru().segmented(4, &[0.1, 0.0, 0.2, 0.1]), Kind::Levels(vec![1, 0, 2, 1])),
        (Passivation::most_recently_used(5), Kind::MostRecent),
        (Passivation::least_frequently_used(5), Kind::Frequency { aging: false }),
        (Passivation::least_frequently_used(5).dynamic_aging(), Kind::Frequency { aging: true }),
    ]
}

fn policy() -> impl Strategy<Value = ReplacementPolicy> {
    prop_oneof![
        Just(ReplacementPolicy::least_recently_used()),
        Just(ReplacementPolicy::segmented(2, &[0.2, 0.8])),
        Just(ReplacementPolicy::segmented(3, &[])),
        Just(ReplacementPolicy::most_recently_used()),
        Just(ReplacementPolicy::least_frequently_used()),
    ]
}

prop_compose! {
    fn composite()(
        main in policy(),
        window in policy(),
        has_window in any::<bool>(),
        has_filter in any::<bool>(),
        climbs in any::<bool>(),
        proportion in 0..=10u8,
    ) -> Passivation {
        let mut settings = Passivation { policy: main, ..Passivation::least_recently_used(5) };
        if has_window || !has_filter {
            settings = settings.admission_window(window, f64::from(proportion) / 10.0).window_bounds(0.0, 1.0);
            if climbs {
                let climbing = HillClimbing { adjust_multiplier: 1.0, initial_step: 0.3, ..HillClimbing::default() };
                settings = settings.hill_climbing(climbing);
            }
        }
        if has_filter {
            let sketch = FrequencySketch { counter_bits: 2, reset_multiplier: 3.0, ..FrequencySketch::default() };
            settings = settings.frequency_sketch(sketch);
        }
        settings
    }
}

/// Takes steps and checks the invariants of every strategy. The shard's watch checks that victims were active, and that
/// no slot is both.
fn check(settings: &Passivation, steps: &[Step]) -> Result<(), TestCaseError> {
    prop_assert_eq!(settings.validate(), Ok(()));
    let mut shard = Watched::new(settings, 5);
    let (mut limit, mut vetoes) = (5, BTreeSet::new());
    for &step in steps {
        match step {
            Step::Limit(new) => limit = new,
            Step::Veto(id, true) => drop(vetoes.insert(id)),
            Step::Veto(id, false) | Step::End(id) => drop(vetoes.remove(&id)),
            Step::Touch(_) => {}
        }
        let before = shard.active.len();
        let victims = take(&mut shard, step);
        prop_assert!(victims.iter().all(|victim| !vetoes.contains(victim)), "{:?} of {:?}", victims, vetoes);
        let free = shard.active.difference(&vetoes).count();
        // Only vetoes excuse exceeding the limit, and then no slot is free except the latest one.
        prop_assert!(shard.active.len() <= limit || free <= usize::from(!vetoes.is_empty()), "{:?}", shard.active);
        let grows = matches!(step, Step::Touch(_));
        prop_assert!(shard.active.len() <= before + usize::from(grows));
        prop_assert!(victims.is_empty() || vetoes.len() >= limit || shard.active.len() + 1 >= limit);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plain_strategies_do_what_their_models_do(steps in steps(true)) {
        for (settings, kind) in plain() {
            let (mut shard, mut model) = (Watched::new(&settings, 5), Model::new(&kind, 5));
            for &step in &steps {
                prop_assert_eq!(take(&mut shard, step), model.take(step), "{:?} at {:?}", kind, step);
            }
        }
    }

    #[test]
    fn a_composite_strategy_keeps_to_its_limit(settings in composite(), steps in steps(false)) {
        check(&settings, &steps)?;
    }

    #[test]
    fn a_composite_strategy_passivates_no_entity_under_a_veto(settings in composite(), steps in steps(true)) {
        check(&settings, &steps)?;
    }
}
