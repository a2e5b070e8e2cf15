//! The handle of the store of durable entries.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use greylag_ddata::{DurableStore, LoadBatch, StoreError as Failure, StoreOp};

use super::loading;
use super::settings::DdataStoreSettings;
use super::shared::{EntryStore, off_thread};

/// Keeps durable entries in a directory. Nothing is opened before the replicator loads.
///
/// ```
/// use std::sync::Arc;
/// use greylag_core::Registry;
/// use greylag_crdt::GCounter;
/// use greylag_ddata::{DurableSettings, Key, Membership, ReadLevel, Replicator, ReplicatorSettings, TypeTable, WriteLevel};
/// use greylag_store_sled::{DdataStore, DdataStoreSettings};
/// use greylag_transport::memory::MemoryNetwork;
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
/// # let data = tempfile::tempdir()?;
/// let network = MemoryNetwork::new();
/// // A node that is started anew is a new incarnation; its store is the same.
/// let start = |node: &str| -> Result<Replicator, Box<dyn std::error::Error>> {
///     let remoting = network.node(node.parse()?, Arc::new(Registry::new()));
///     let settings = ReplicatorSettings { durable: DurableSettings::of(["visits"]), ..ReplicatorSettings::test() };
///     let store = Arc::new(DdataStore::new(data.path().join("ddata"), DdataStoreSettings::default()));
///     Ok(Replicator::start_durable(settings, TypeTable::new(), remoting, Membership::fixed([]), store)?)
/// };
/// let visits = Key::<GCounter>::new("visits")?;
///
/// let first = start("shop:7355#1")?;
/// first.update(&visits, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 3)).await?;
/// first.shutdown().await;
///
/// let second = start("shop:7355#2")?;
/// let read = second.get(&visits, ReadLevel::Local).await?;
/// assert_eq!(read.found().map(|visits| visits.value()), Some(3));
/// # second.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DdataStore {
    shared: Arc<EntryStore>,
}

impl DdataStore {
    /// The store in the directory `path`, which is created when the store is opened.
    pub fn new(path: impl Into<PathBuf>, settings: DdataStoreSettings) -> Self {
        Self { shared: Arc::new(EntryStore::new(path.into(), settings)) }
    }

    /// The directory of a replicator's store: a path that ends in `ddata` is completed by the names of cluster and
    /// replicator and by the port, so that nodes on one machine do not meet; any other path is taken as it is. Relative
    /// paths begin at `data_dir`. Source: ddata U6.
    pub fn place(data_dir: &Path, path: &Path, cluster: &str, replicator: &str, port: u16) -> PathBuf {
        let ends_so = path.file_name().and_then(|name| name.to_str()).filter(|name| name.ends_with("ddata"));
        let named = ends_so.map(|name| path.with_file_name(format!("{name}-{cluster}-{replicator}-{port}")));
        data_dir.join(named.as_deref().unwrap_or(path))
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl std::fmt::Debug for DdataStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DdataStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl DurableStore for DdataStore {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, Failure>> {
        loading::load_all(self.shared.clone())
    }

    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.shared.clone().append(ops))
    }

    fn set_aside(&self) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(async {
            let shared = self.shared.clone();
            let moved = off_thread(move || shared.set_aside()).await;
            moved
                .unwrap_or_else(|| Err(self.shared.failed(&"no thread to move it on")))
                .map(|aside| aside.display().to_string())
        })
    }

    /// Nothing to do: appending ends with a sync.
    fn flush(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        let store = self.shared.take();
        Box::pin(async move {
            let Some(store) = store else { return Ok(()) };
            let closed = off_thread(move || store.close()).await;
            closed.unwrap_or(Ok(())).map_err(|error| self.shared.failed(&error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata U6: only a path that ends in `ddata` is completed.
    #[test]
    fn the_default_path_tells_nodes_apart() {
        let place = |path: &str| DdataStore::place(Path::new("/var/lib/shop"), Path::new(path), "shop", "carts", 7355);
        assert_eq!(place("ddata"), Path::new("/var/lib/shop/ddata-shop-carts-7355"));
        assert_eq!(place("/mnt/my-ddata"), Path::new("/mnt/my-ddata-shop-carts-7355"));
        assert_eq!(place("/mnt/carts"), Path::new("/mnt/carts"));
    }
}
