//! Routes the messages of one entity type on one node: knows homes, buffers, hosts, hands off.
//!
//! A region keeps the last known home of every shard and publishes the homes as a route table; only messages that have
//! no open route, or need a check, pass through this machine. The region takes orders from one coordinator at a time
//! and checks every order by epoch and generation. Shards themselves, messages and links belong to the driver; see
//! [`protocol`](self) for the contract with the driver.
//!
//! ```text
//! Unknown -> Resolving -> Remote(region, generation) -> Buffering -> Remote ...
//!                      -> LocalStarting <-> Local(generation) -> Draining -> Resolving ...
//! ```
//! These states are a type, `Slot`: each state owns the data that only this state has, and a transition consumes
//! the state that it leaves. Data kept for a shard in every state (waiting messages, generations heard of) is in
//! `ShardPlace`.
//!
//! Source: sharding §2.3 to §2.6, §2.9 to §2.12, §9. Differs: as tagged `[D]` there.

mod agreement;
mod config;
mod host_watch;
mod machine;
mod nodes;
mod orders;
mod place;
mod protocol;
mod registration;
mod report;
mod requests;
mod routing;

pub use self::config::{RegionConfig, RegionState};
pub use self::machine::Region;
pub use self::orders::answer_without_region;
pub use self::protocol::{Effect, Input, MessageInfo, Provenance, Returned, Route, Token};
pub use self::report::{Answer, Counters, Obstacle, RegionEvent, Request, RequestEnd};
