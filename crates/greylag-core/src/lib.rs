//! Nouns that every layer of Greylag shares. No I/O, no clock, no tasks.
//!
//! ```
//! use greylag_core::{Generation, NodeAddress, Uid, UniqueAddress};
//!
//! let address: NodeAddress = "Node-1.example:17355".parse()?;
//! assert_eq!(address.to_string(), "node-1.example:17355");
//!
//! // A process is an address and the uid of one incarnation: after a restart it is another process.
//! let before = UniqueAddress::new(address.clone(), Uid::new(7).expect("not zero"));
//! let after = UniqueAddress::new(address, Uid::new(8).expect("not zero"));
//! assert_ne!(before, after);
//!
//! // Who owns a shard is settled by comparing generations, never by clocks.
//! assert!(Generation::new(2, 0)? > Generation::new(1, 999)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The types here are those on which at least two layers must agree to the letter: the identity of a node
//! ([`UniqueAddress`]), the ownership of shards ([`Generation`]), the names of messages on wire and disk ([`Codec`],
//! [`Registry`]), the way of an answer to its asker ([`ReplyTo`], [`EntityError`]), the reason why a message was
//! dropped ([`DeadLetterReason`]), and the bound of a queue between tasks ([`Room`]).

mod address;
mod dead_letter;
mod duration;
mod encoding;
mod entity_error;
mod generation;
mod reply;
mod room;
mod sentence;
mod timer_key;

pub use address::{InvalidAddress, NodeAddress, Uid, UniqueAddress};
pub use dead_letter::DeadLetterReason;
pub use duration::{InvalidDuration, parse_duration, show_duration};
pub use encoding::{Codec, CodecId, DecodeError, EncodeError, Encoded, Manifest, Registry, RegistryError};
pub use entity_error::{EntityError, NotStoredReason};
pub use generation::{Generation, GenerationError};
pub use reply::{
    AnswerReader, AnswerWriter, ReadTokenError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyScope, ReplyTo,
    StorageScope, TokenCodec, UnboundReply, answer_dropped, answer_undelivered,
};
#[cfg(feature = "serde")]
pub use reply::{FormatScope, ReadAnswer, ReplyFormat};
pub use room::{Room, Share};
pub use sentence::fmt_sentence;
pub use timer_key::TimerKey;
