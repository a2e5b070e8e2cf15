//! An entity type as a node keeps it: its properties, with the kind of its entities erased.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{Codec, CodecId};

use crate::driver::AllocationStrategy;
use crate::entity::{EntityInit, Failure, Supervision};
use crate::extractor::Extractor;
use crate::host::HostedEntity;
use crate::passivation::Passivation;
use crate::remember::RememberStore;
use crate::settings::ShardingSettings;

/// An entity with its own type erased, as held by shards.
pub(crate) type BoxedEntity<M> = Box<dyn HostedEntity<Message = M>>;

/// Makes entities.
pub(crate) type Factory<M> = Arc<dyn Fn(&EntityInit) -> Result<BoxedEntity<M>, Failure> + Send + Sync>;

/// Makes stop messages.
type StopMessage<M> = Arc<dyn Fn() -> M + Send + Sync>;

/// Tells messages that count as activity from those that do not.
type IsActivity<M> = Arc<dyn Fn(&M) -> bool + Send + Sync>;

/// Changes the settings of one type.
type ChangeSettings = Arc<dyn Fn(&mut ShardingSettings) + Send + Sync>;

/// Tells which entity a message is for.
type AddressedBy<M> = Arc<dyn Fn(&M) -> Option<Arc<str>> + Send + Sync>;

/// The types of the given functions, which tell closures of one place in the program from those of another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GivenTypes {
    pub(super) factory: Option<TypeId>,
    pub(super) codec: Option<TypeId>,
    pub(super) stored: (Option<TypeId>, Option<TypeId>),
    pub(super) stop_message: Option<TypeId>,
    pub(super) is_activity: Option<TypeId>,
    pub(super) settings: Option<TypeId>,
    pub(super) addressed_by: Option<TypeId>,
}

/// The kind of data that entities of a type keep in this node's stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persisted {
    Nothing,
    Events,
    State,
}

/// Properties that entity types of every kind have.
pub(crate) struct Common<M> {
    pub(crate) codec: Option<Arc<dyn Codec<M>>>,
    pub(crate) local_only: bool,
    pub(crate) extractor: Option<Arc<dyn Extractor>>,
    pub(crate) role: Option<String>,
    pub(crate) stop_message: Option<StopMessage<M>>,
    pub(crate) is_activity: Option<IsActivity<M>>,
    pub(crate) addressed_by: Option<AddressedBy<M>>,
    pub(crate) supervision: Supervision,
    pub(crate) allocation: Option<Arc<dyn AllocationStrategy>>,
    pub(crate) passivation: Option<Passivation>,
    pub(crate) ask_timeout: Option<Duration>,
    pub(crate) lease: Option<String>,
    pub(crate) settings: Option<ChangeSettings>,
    pub(crate) remember: Remember,
    pub(super) given: GivenTypes,
}

/// Whether a type remembers its entities.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Remember {
    /// By the settings.
    #[default]
    AsSet,
    /// No, whatever the settings are.
    Never,
    /// Yes, in this store.
    In(RememberStore),
}

impl<M> Default for Common<M> {
    fn default() -> Self {
        Self {
            codec: None,
            local_only: false,
            extractor: None,
            role: None,
            stop_message: None,
            is_activity: None,
            addressed_by: None,
            supervision: Supervision::default(),
            allocation: None,
            passivation: None,
            ask_timeout: None,
            lease: None,
            settings: None,
            remember: Remember::AsSet,
            given: GivenTypes::default(),
        }
    }
}

impl<M> Common<M> {
    /// The first method about messages that was called, if any.
    pub(super) fn message_setting(&self) -> Option<&'static str> {
        let settings = [
            (self.stop_message.is_some(), "stop_message"),
            (self.is_activity.is_some(), "is_activity"),
            (self.addressed_by.is_some(), "addressed_by"),
        ];
        settings.into_iter().find(|(is_set, _)| *is_set).map(|(_, what)| what)
    }

    /// The same properties for a type with other messages. Functions of messages are left out; `codec` makes the codec.
    pub(super) fn of_other_messages<N>(self, codec: impl FnOnce(Arc<dyn Codec<M>>) -> Arc<dyn Codec<N>>) -> Common<N> {
        let Self { local_only, extractor, role, supervision, allocation, passivation, ask_timeout, .. } = self;
        let Self { lease, settings, remember, given, .. } = self;
        Common {
            codec: self.codec.map(codec),
            local_only,
            extractor,
            role,
            stop_message: None,
            is_activity: None,
            addressed_by: None,
            supervision,
            allocation,
            passivation,
            ask_timeout,
            lease,
            settings,
            remember,
            given: GivenTypes { stop_message: None, is_activity: None, addressed_by: None, ..given },
        }
    }
}

/// How a node makes the entities of a type that it hosts, and how their data is stored.
pub struct Hosted<M> {
    pub(crate) factory: Factory<M>,
    pub(crate) persisted: Persisted,
}

impl<M> fmt::Debug for Hosted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").field("persisted", &self.persisted).finish_non_exhaustive()
    }
}

/// Why a description is incomplete for hosting entities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incomplete {
    /// There is no codec for these data.
    NoCodec(&'static str),
    /// This method about messages was called before a layer wrapped them.
    OfWrappedMessages(&'static str),
}

/// An entity type with its kind erased.
pub(crate) struct Described<M> {
    pub(crate) name: String,
    pub(crate) common: Common<M>,
    /// The id of the messages' codec: read once, since a codec is user code.
    pub(crate) codec_id: CodecId,
    /// The names that this codec reads, as in the fingerprint.
    pub(crate) codec_names: Vec<String>,
    /// `None` for the description of a proxy.
    pub(crate) hosted: Option<Hosted<M>>,
}

impl<M: 'static> Described<M> {
    /// The first difference between `other` and this type. A proxy sets nothing that only hosts need, and may leave out
    /// codec, extractor and role. Two factories count as equal if they are written at the same place in the program:
    /// their captured values cannot be compared.
    pub(crate) fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let is_proxy = other.hosted.is_none();
        let is_unset = |says: bool| is_proxy && !says;
        let persisted = |of: &Self| of.hosted.as_ref().map(|hosted| hosted.persisted);
        let (ours, theirs) = (&self.common, &other.common);
        let codec = |of: &Self| (of.common.given.codec, of.codec_names.clone());
        let extractor = |of: &Common<M>| {
            of.extractor.as_ref().map(|extractor| {
                (extractor.identity().0.to_owned(), extractor.identity().1, extractor.number_of_shards())
            })
        };
        let limits = |of: &Common<M>| (of.supervision.max_restarts, of.supervision.restart_window);
        let routing = [
            ("codec", is_unset(theirs.codec.is_some()) || codec(self) == codec(other)),
            ("extractor", is_unset(theirs.extractor.is_some()) || extractor(ours) == extractor(theirs)),
            (
                "addressed_by",
                is_unset(theirs.addressed_by.is_some()) || ours.given.addressed_by == theirs.given.addressed_by,
            ),
            ("role", is_unset(theirs.role.is_some()) || ours.role == theirs.role),
        ];
        let hosting = [
            ("factory", ours.given.factory == theirs.given.factory),
            ("persistence", persisted(self) == persisted(other)),
            ("codec of what is stored", ours.given.stored == theirs.given.stored),
            ("stop_message", ours.given.stop_message == theirs.given.stop_message),
            ("is_activity", ours.given.is_activity == theirs.given.is_activity),
            ("supervision", limits(ours) == limits(theirs)),
            ("passivation", ours.passivation == theirs.passivation),
            ("remember_entities", ours.remember == theirs.remember),
            ("ask_timeout", ours.ask_timeout == theirs.ask_timeout),
            ("lease", ours.lease == theirs.lease),
            ("settings", ours.given.settings == theirs.given.settings),
        ];
        let hosting = hosting.into_iter().filter(|_| !is_proxy);
        routing.into_iter().chain(hosting).find(|(_, is_same)| !is_same).map(|(field, _)| field)
    }
}
