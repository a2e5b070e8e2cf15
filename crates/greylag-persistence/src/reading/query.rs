//! Reading events across histories: streams, followers and envelopes.
//!
//! A store answers pages; a [`Feed`](feed::Feed) makes a stream of pages, up to the present end or for ever;
//! [`ReadJournal`](crate::ReadJournal) is the interface for programs. Per id the order of a stream is the order of the
//! history; across ids it is the order of storage.
//!
//! Stores that order by ordinals show events in the order of their commits, without gaps. Databases order by the time of
//! the commit, and a commit may become visible after a later one: there a feed goes back over events that it has read
//! ([`EventSource::Backtracking`](crate::EventSource::Backtracking)), and a consumer that needs every event once applies
//! the gap rules, as a projection does.
//!
//! Changes of durable states are read in the same way, by the queries of a state store: a change comes as
//! a record whose number is the revision ([`StoredState::into_record`](crate::StoredState::into_record)).
//! Only the newest revision of each id is shown ([`Shows::Newest`](crate::Shows::Newest)). Source: persistence §5.

pub(crate) mod envelope;
pub(crate) mod feed;
pub(crate) mod follower;
pub(crate) mod settings;
pub(crate) mod shared_reader;
