//! A strategy of two areas: an admission window for new slots, and a main area that they compete for.
//!
//! ```text
//! new slot --> window --(the window is full)--> candidate
//! candidate --> main area, if there is room
//!           --> main area, in place of its next victim, if the filter admits it
//!           --> passivated
//! ```
//!
//! The window lets a slot gather uses before it is judged; the filter keeps slots used once from displacing slots used
//! often. An optimizer may move the border between the areas, and slots move over it without being passivated.
//!
//! Source: sharding §4.10; "TinyLFU" and "Adaptive Software Cache Management", Einziger et al.

use super::hill_climber::HillClimber;
use super::order::{Area, Entries, Order, order, share};
use super::policy::{AdmissionWindow, FrequencySketch, ReplacementPolicy};
use super::sketch::Sketch;

/// The admission filter.
#[derive(Debug)]
struct Filter {
    settings: FrequencySketch,
    sketch: Sketch,
    /// The hash of each slot's id.
    hashes: Vec<u64>,
}

impl Filter {
    fn count(&mut self, slot: u32, hash: u64) {
        let at = slot as usize;
        if at >= self.hashes.len() {
            self.hashes.resize(at + 1, 0);
        }
        self.hashes[at] = hash;
        self.sketch.count(hash);
    }

    fn admits(&self, candidate: u32, victim: u32) -> bool {
        let estimate = |slot: u32| self.sketch.estimate(self.hashes[slot as usize]);
        estimate(candidate) > estimate(victim)
    }
}

/// Both areas, and the control of the border between them.
#[derive(Debug)]
pub(super) struct Composite {
    limit: usize,
    window: Box<dyn Order>,
    /// Most slots in the window; 0 without a window.
    window_limit: usize,
    /// The window's part of the limit.
    proportion: f64,
    /// The smallest and the largest proportion.
    bounds: (f64, f64),
    climber: Option<HillClimber>,
    main: Box<dyn Order>,
    main_limit: usize,
    filter: Option<Filter>,
}

impl Composite {
    /// A strategy with empty areas.
    pub(super) fn new(
        main: &ReplacementPolicy,
        window: Option<&AdmissionWindow>,
        filter: Option<FrequencySketch>,
        entries: &mut Entries,
        limit: usize,
    ) -> Self {
        let policy = window.map_or(&ReplacementPolicy::LeastRecentlyUsed(None), |window| &window.policy);
        let optimizer = window.and_then(|window| window.optimizer);
        let mut composite = Self {
            limit,
            window: order(policy),
            window_limit: 0,
            proportion: window.map_or(0.0, |window| window.proportion),
            bounds: window.map_or((0.0, 0.0), |window| (window.minimum_proportion, window.maximum_proportion)),
            climber: optimizer.map(|settings| HillClimber::new(settings, limit)),
            main: order(main),
            main_limit: 0,
            filter: filter.map(|settings| Filter {
                settings,
                sketch: Sketch::new(settings, limit),
                hashes: Vec::new(),
            }),
        };
        composite.divide(entries);
        composite
    }

    /// Number of slots in both areas.
    pub(super) fn len(&self) -> usize {
        self.window.len() + self.main.len()
    }

    /// Notes a use of the slot, which may be new. A new slot that goes straight to the main area may itself be
    /// passivated.
    pub(super) fn touched(&mut self, entries: &mut Entries, slot: u32, hash: u64, out: &mut Vec<u32>) {
        if let Some(filter) = &mut self.filter {
            filter.count(slot, hash);
        }
        let live = entries.is_live(slot);
        if live {
            self.area(entries, slot).touch(entries, slot);
        } else {
            self.enter(entries, slot, out);
        }
        if let Some(step) = self.climber.as_mut().and_then(|climber| climber.count(live)) {
            self.adapt(entries, step);
        }
    }

    /// Takes out a slot that has ended.
    pub(super) fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.area(entries, slot).remove(entries, slot);
    }

    /// Puts a slot back that was parked for its veto.
    pub(super) fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        self.area(entries, slot).readmit(entries, slot);
    }

    /// Changes the limit; the caller must call [`Composite::enforce_limit`] afterwards.
    pub(super) fn set_limit(&mut self, entries: &mut Entries, limit: usize) {
        self.limit = limit;
        self.divide(entries);
        if let Some(climber) = &mut self.climber {
            climber.set_limit(limit);
        }
        if let Some(filter) = &mut self.filter {
            filter.sketch = Sketch::new(filter.settings, limit);
        }
    }

    /// Passivates slots until the limit holds.
    pub(super) fn enforce_limit(&mut self, entries: &mut Entries, out: &mut Vec<u32>) {
        while self.window.len() > self.window_limit {
            let Some(candidate) = self.window.victim(entries) else { break };
            self.window.evict(entries, candidate);
            self.compete(entries, candidate, out);
        }
        while self.main.len() > self.main_limit {
            let beyond = self.len() > self.limit;
            let Some(victim) = self.main.victim(entries) else { break };
            self.main.evict(entries, victim);
            if beyond {
                out.push(victim);
            } else {
                // Put the slot back: the window has room for it.
                self.put(entries, victim, Area::Window);
            }
        }
        self.evict_to(entries, self.limit, out);
    }

    fn area(&mut self, entries: &Entries, slot: u32) -> &mut dyn Order {
        match entries.get(slot).area {
            Area::Window => self.window.as_mut(),
            Area::Main => self.main.as_mut(),
        }
    }

    fn put(&mut self, entries: &mut Entries, slot: u32, area: Area) {
        entries.get_mut(slot).area = area;
        self.area(entries, slot).insert(entries, slot);
    }

    /// Adds a new slot.
    fn enter(&mut self, entries: &mut Entries, slot: u32, out: &mut Vec<u32>) {
        if self.window_limit == 0 {
            self.compete(entries, slot, out);
            return self.evict_to(entries, self.limit, out);
        }
        while self.window.len() >= self.window_limit {
            let Some(candidate) = self.window.victim(entries) else { break };
            self.window.evict(entries, candidate);
            self.compete(entries, candidate, out);
        }
        self.evict_to(entries, self.limit - 1, out);
        self.put(entries, slot, Area::Window);
    }

    /// Puts a slot that is in neither area into the main area, or passivates it.
    fn compete(&mut self, entries: &mut Entries, candidate: u32, out: &mut Vec<u32>) {
        if self.main.len() < self.main_limit {
            return self.put(entries, candidate, Area::Main);
        }
        let filter = &self.filter;
        match self.main.victim(entries) {
            Some(victim) if filter.as_ref().is_none_or(|filter| filter.admits(candidate, victim)) => {
                self.main.evict(entries, victim);
                out.push(victim);
                self.put(entries, candidate, Area::Main);
            }
            // A new slot may be under a veto before its first use; then admit it, and another slot goes for it if
            // possible.
            _ if entries.get(candidate).veto => self.put(entries, candidate, Area::Main),
            _ => out.push(candidate),
        }
    }

    /// Passivates slots without a competition until `most` are left. Only vetoes make this necessary: slots that stay
    /// although they should have left take the room of others.
    fn evict_to(&mut self, entries: &mut Entries, most: usize, out: &mut Vec<u32>) {
        while self.len() > most {
            let (area, victim) = match self.main.victim(entries) {
                Some(victim) => (&mut self.main, victim),
                None => match self.window.victim(entries) {
                    Some(victim) => (&mut self.window, victim),
                    None => return,
                },
            };
            area.evict(entries, victim);
            out.push(victim);
        }
    }

    /// Moves the border by a step of the optimizer, and slots over it.
    fn adapt(&mut self, entries: &mut Entries, step: f64) {
        let (minimum, maximum) = self.bounds;
        self.proportion = (self.proportion + step).min(maximum).max(minimum);
        self.divide(entries);
        while self.main.len() > self.main_limit && step > 0.0 {
            let Some(slot) = self.main.victim(entries) else { break };
            self.main.evict(entries, slot);
            self.put(entries, slot, Area::Window);
        }
        while self.window.len() > self.window_limit && step < 0.0 {
            let Some(slot) = self.window.victim(entries) else { break };
            self.window.evict(entries, slot);
            self.put(entries, slot, Area::Main);
        }
    }

    /// Gives each area its part of the limit.
    fn divide(&mut self, entries: &mut Entries) {
        self.window_limit = share(self.proportion, self.limit);
        self.main_limit = self.limit - self.window_limit;
        self.window.set_limit(entries, self.window_limit);
        self.main.set_limit(entries, self.main_limit);
    }
}
