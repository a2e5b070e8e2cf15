//! The producer's side: links, the controllers around them, and the storing of messages.
//!
//! [`point_to_point`] and [`work_pulling`] are controllers with the inputs and effects of [`controller`];
//! [`sharding_producer`] has its own, since its senders name an entity.

mod admission;
pub mod controller;
pub mod point_to_point;
pub mod portable;
pub mod producer_link;
pub mod sharding_producer;
pub mod storing;
pub mod work_pulling;
