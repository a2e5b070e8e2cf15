//! The parts of a limit of active entities. Source: sharding §4.10, §7.

/// Levels of a segmented least-recently-used policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Segments {
    /// Number of levels. A new entity enters the lowest, and each use moves it one level up.
    pub levels: u16,
    /// Each level's part of the limit, from the lowest; the lowest also has the rest. Empty: even parts.
    pub proportions: Vec<f64>,
}

/// Whether entities that were popular once fall behind entities that are popular now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Aging {
    /// Only uses count. The default.
    #[default]
    Off,
    /// Each passivation raises the starting priority of entities that come in after it.
    Dynamic,
}

/// Which entity goes when another entity needs its place.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplacementPolicy {
    /// The entity not used for longest; with levels, the one of the lowest level.
    LeastRecentlyUsed(Option<Segments>),
    /// The entity used last before the one that needs the place. Suits uses that cycle through many entities.
    MostRecentlyUsed,
    /// The entity with the fewest uses since it started; among equals, the one not used for longest.
    LeastFrequentlyUsed(Aging),
}

impl ReplacementPolicy {
    /// The entity not used for longest goes.
    pub const fn least_recently_used() -> Self {
        Self::LeastRecentlyUsed(None)
    }

    /// As [`ReplacementPolicy::least_recently_used`], in levels, so that entities used once do not displace entities
    /// used often. See [`Segments`].
    pub fn segmented(levels: u16, proportions: &[f64]) -> Self {
        Self::LeastRecentlyUsed(Some(Segments { levels, proportions: proportions.to_vec() }))
    }

    /// The entity used last before the new one goes.
    pub const fn most_recently_used() -> Self {
        Self::MostRecentlyUsed
    }

    /// The entity with the fewest uses goes.
    pub const fn least_frequently_used() -> Self {
        Self::LeastFrequentlyUsed(Aging::Off)
    }
}

/// Lets a new entity gather uses before it competes with entities of the main area.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionWindow {
    /// Which entity leaves the window when it is full.
    pub policy: ReplacementPolicy,
    /// The window's initial part of the limit; rounded down. Default 0.01.
    pub proportion: f64,
    /// The smallest proportion under hill climbing. Default 0.01.
    pub minimum_proportion: f64,
    /// The largest proportion under hill climbing. Default 1.0.
    pub maximum_proportion: f64,
    /// How the proportion adapts to the uses; `None`, the default, keeps it.
    pub optimizer: Option<HillClimbing>,
}

impl Default for AdmissionWindow {
    fn default() -> Self {
        Self {
            policy: ReplacementPolicy::least_recently_used(),
            proportion: 0.01,
            minimum_proportion: 0.01,
            maximum_proportion: 1.0,
            optimizer: None,
        }
    }
}

/// Changes the window's proportion step by step, and changes direction when fewer uses find their entity active.
///
/// Source: "Adaptive Software Cache Management", Einziger et al. 2018.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HillClimbing {
    /// Uses between two steps, as a multiple of the limit. Default 10.
    pub adjust_multiplier: f64,
    /// The first step, and the first after a restart, as a proportion of the limit. The first step goes down. Default
    /// 0.0625.
    pub initial_step: f64,
    /// How much the rate of uses that find their entity active must change for the steps to restart. Default 0.05.
    pub restart_threshold: f64,
    /// The ratio of a step to the one before it. Default 0.98.
    pub step_decay: f64,
}

impl Default for HillClimbing {
    fn default() -> Self {
        Self { adjust_multiplier: 10.0, initial_step: 0.0625, restart_threshold: 0.05, step_decay: 0.98 }
    }
}

/// Estimates how often entities were used, active or not, in a fixed space. A full main area admits a new entity only
/// if it was used more often than the entity that would go for it.
///
/// Source: "TinyLFU: A Highly Efficient Cache Admission Policy", Einziger et al. 2017.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrequencySketch {
    /// Rows of counters, each with its own hash. More: better estimates, slower. Default 4.
    pub depth: u8,
    /// Bits of a counter: 2, 4, 8, 16, 32 or 64. A full counter stays full. Default 4.
    pub counter_bits: u8,
    /// Counters of a row, as a multiple of the limit rounded up to a power of two. Default 4.
    pub width_multiplier: u32,
    /// Number of counted uses after which all counters are halved, as a multiple of the limit. Default 10.
    pub reset_multiplier: f64,
}

impl Default for FrequencySketch {
    fn default() -> Self {
        Self { depth: 4, counter_bits: 4, width_multiplier: 4, reset_multiplier: 10.0 }
    }
}
