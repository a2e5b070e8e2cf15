//! One entry of a replicator, with the type of its value: the usual handle of programs.
//!
//! Requests are builders to be awaited; without further calls they concern this replica alone.
//!
//! Source: ddata R3, R4.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::{Duration, Instant};

use greylag_crdt::{ReplicatedData, UpdateCx};

use super::{Replicator, Subscription};
use crate::api::error::{DeleteError, ReadError, RequestError, UpdateError};
use crate::api::key::{Key, KeyId};
use crate::api::level::{ReadLevel, WriteLevel};
use crate::api::outcome::Outcome;
use crate::api::read::Read;

/// How long a request waits for other replicas by default.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One entry, whose value is a `T` on every replica. Cheap to clone.
///
/// ```
/// # use std::sync::Arc;
/// # use greylag_core::Registry;
/// # use greylag_crdt::{OrSet, PNCounter};
/// # use greylag_ddata::{Membership, Replicator, ReplicatorSettings, TypeTable};
/// # use greylag_transport::memory::MemoryNetwork;
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// # let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
/// # let replicator = Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, Membership::fixed([]))?;
/// let votes = replicator.replicated::<PNCounter>("votes")?;
/// votes.update(|votes, cx| votes.increment(cx, 1)).await?; // here; the others hear of it
/// votes.update(|votes, cx| votes.increment(cx, 1)).majority().await?; // on most replicas
/// assert_eq!(votes.get().majority().await?.value(), 2);
///
/// let birds = replicator.replicated::<OrSet<String>>("birds")?;
/// birds.update(|birds, cx| birds.add(cx, "heron".to_owned())).await?;
/// assert!(birds.get().await?.contains("heron"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Replicated<T> {
    replicator: Replicator,
    key: Key<T>,
}

/// How many replicas take part in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replicas {
    This,
    Count(usize),
    Majority,
    All,
}

impl Replicas {
    fn of(count: usize) -> Self {
        if count < 2 { Self::This } else { Self::Count(count) }
    }

    fn write(self, timeout: Duration) -> WriteLevel {
        match self {
            Self::This => WriteLevel::Local,
            Self::Count(n) => WriteLevel::To { n, timeout },
            Self::Majority => WriteLevel::majority(timeout),
            Self::All => WriteLevel::all(timeout),
        }
    }

    fn read(self, timeout: Duration) -> ReadLevel {
        match self {
            Self::This => ReadLevel::Local,
            Self::Count(n) => ReadLevel::From { n, timeout },
            Self::Majority => ReadLevel::majority(timeout),
            Self::All => ReadLevel::all(timeout),
        }
    }
}

impl Replicator {
    /// The entry of this id, whose value is a `T`. The entry comes into being with its first update.
    ///
    /// # Errors
    /// [`RequestError`]: the id cannot name an entry, or the replicator has stopped.
    pub fn replicated<T: ReplicatedData>(&self, id: impl Into<KeyId>) -> Result<Replicated<T>, RequestError> {
        let key = Key::new(id)?;
        // Peers may send values of the type before this replica has used it.
        self.add_types(crate::TypeTable::empty().with::<T>())?;
        Ok(Replicated { replicator: self.clone(), key })
    }
}

impl<T: ReplicatedData> Replicated<T> {
    /// Changes the value when the returned request is awaited: `change` runs on the value, or on an empty one. `change`
    /// returns nothing, a `bool`, or a `Result`, whose error leaves the value as it was. It must not block: it runs in
    /// the replicator's task.
    ///
    /// The change is made on this replica and spreads to the others; [`Update::majority`] and its like wait until more
    /// replicas have it.
    pub fn update<R, F>(&self, change: F) -> Update<T, R, F>
    where
        R: Outcome,
        F: FnOnce(&mut T, &mut UpdateCx<'_>) -> R + Send + 'static,
    {
        Update { of: self.clone(), change, replicas: Replicas::This, timeout: TIMEOUT, result: PhantomData }
    }

    /// Reads the value when the returned request is awaited: this replica's value, unless [`Get::majority`] or its like
    /// asks others. An entry that was never updated reads as an empty value.
    pub fn get(&self) -> Get<T> {
        Get { of: self.clone(), replicas: Replicas::This, timeout: TIMEOUT }
    }

    /// Deletes the entry for good when the returned request is awaited: no value of this id comes back. Source: ddata
    /// R5.
    pub fn delete(&self) -> Delete<T> {
        Delete { of: self.clone(), replicas: Replicas::This, timeout: TIMEOUT }
    }

    /// Subscribes to the value. Dropping the subscription ends it.
    pub fn subscribe(&self) -> Subscription<T> {
        self.replicator.subscribe(&self.key)
    }
}

impl<T> Replicated<T> {
    /// The entry's key, for the requests of [`Replicator`].
    pub fn key(&self) -> &Key<T> {
        &self.key
    }

    /// The replicator that holds the entry.
    pub fn replicator(&self) -> &Replicator {
        &self.replicator
    }
}

impl<T> Clone for Replicated<T> {
    fn clone(&self) -> Self {
        Self { replicator: self.replicator.clone(), key: self.key.clone() }
    }
}

impl<T> fmt::Debug for Replicated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replicated({})", self.key.id())
    }
}

/// The future of an answer.
type Answer<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// A change that is made when the request is awaited.
#[must_use = "an update is made when it is awaited"]
pub struct Update<T, R, F> {
    of: Replicated<T>,
    change: F,
    replicas: Replicas,
    timeout: Duration,
    result: PhantomData<fn() -> R>,
}

/// A read that begins when the request is awaited.
#[must_use = "an entry is read when this is awaited"]
pub struct Get<T> {
    of: Replicated<T>,
    replicas: Replicas,
    timeout: Duration,
}

/// A deletion that is made when the request is awaited.
#[must_use = "an entry is deleted when this is awaited"]
pub struct Delete<T> {
    of: Replicated<T>,
    replicas: Replicas,
    timeout: Duration,
}

/// The methods of every request that set how many replicas take part.
macro_rules! replicas {
    ($request:ident<$($parameter:ident),+>, $until:literal) => {
        impl<$($parameter),+> $request<$($parameter),+> {
            #[doc = concat!("Waits until ", $until, " more than half of the replicas. Source: ddata R8.")]
            pub fn majority(self) -> Self {
                Self { replicas: Replicas::Majority, ..self }
            }

            #[doc = concat!("Waits until ", $until, " all replicas that stay. Source: ddata R8.")]
            pub fn all(self) -> Self {
                Self { replicas: Replicas::All, ..self }
            }

            #[doc = concat!("Waits until ", $until, " so many replicas, this one included. 0 and 1 are this one.")]
            pub fn at_least(self, replicas: usize) -> Self {
                Self { replicas: Replicas::of(replicas), ..self }
            }

            /// Sets how long to wait for other replicas. Default 5 s.
            pub fn timeout(self, timeout: Duration) -> Self {
                Self { timeout, ..self }
            }
        }

        impl<$($parameter),+> fmt::Debug for $request<$($parameter),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($request))
                    .field("key", self.of.key.id())
                    .field("replicas", &self.replicas)
                    .field("timeout", &self.timeout)
                    .finish_non_exhaustive()
            }
        }
    };
}
replicas!(Update<T, R, F>, "the change is made on");
replicas!(Get<T>, "the value holds what is known to");
replicas!(Delete<T>, "the entry is deleted on");

impl<T, R, F> IntoFuture for Update<T, R, F>
where
    T: ReplicatedData,
    R: Outcome,
    F: FnOnce(&mut T, &mut UpdateCx<'_>) -> R + Send + 'static,
{
    type Output = Result<R::Value, UpdateError<R::Error>>;
    type IntoFuture = Answer<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { of, change, replicas, timeout, .. } = self;
        let change = move |value: &mut T, cx: &mut UpdateCx<'_>| change(value, cx).into_result();
        Box::pin(async move { of.replicator.update(&of.key, replicas.write(timeout), T::zero, change).await })
    }
}

impl<T: ReplicatedData> IntoFuture for Get<T> {
    type Output = Result<T, ReadError>;
    type IntoFuture = Answer<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { of, replicas, timeout } = self;
        Box::pin(async move {
            let began = Instant::now();
            if replicas != Replicas::This {
                // Wait: a replica that is still syncing does not count in its own reads (ddata G13).
                of.replicator.wait_synced(timeout).await;
            }
            let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1)).min(timeout);
            match of.replicator.get(&of.key, replicas.read(left)).await? {
                Read::Found(value) => Ok(value),
                Read::NotFound => Ok(T::zero()),
                Read::Deleted => Err(ReadError::Deleted { key: of.key.id().clone() }),
            }
        })
    }
}

impl<T: ReplicatedData> IntoFuture for Delete<T> {
    type Output = Result<(), DeleteError>;
    type IntoFuture = Answer<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { of, replicas, timeout } = self;
        Box::pin(async move { of.replicator.delete(&of.key, replicas.write(timeout)).await })
    }
}
