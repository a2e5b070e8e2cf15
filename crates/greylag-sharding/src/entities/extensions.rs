//! Values that layers above sharding keep with a node's sharding: one of each type.
//!
//! A description of an entity type is made before there is a node. Values of the node that its entities need at their
//! start (settings of a layer, counters, a list of types that are set up) are found here, by their type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

type Value = Arc<dyn Any + Send + Sync>;

/// See the module's description.
#[derive(Default)]
pub struct Extensions(RwLock<HashMap<TypeId, Value>>);

impl Extensions {
    /// The value of this type, if there is one.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.get(&TypeId::of::<T>()).cloned().and_then(|value| value.downcast().ok())
    }

    /// The value of this type: `value`, unless there is one already.
    pub fn get_or_insert<T: Any + Send + Sync>(&self, value: T) -> Arc<T> {
        let value: Value = Arc::new(value);
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = values.entry(TypeId::of::<T>()).or_insert_with(|| value.clone()).clone();
        // Drop an unused value without the lock, as its destructor may come back here.
        drop(values);
        known.downcast().expect("it is kept under its type")
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Extensions({} values)", values.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_each_type_and_the_first_stays() {
        let extensions = Extensions::default();
        assert_eq!(extensions.get::<u32>(), None);
        assert_eq!(*extensions.get_or_insert(7_u32), 7);
        assert_eq!(*extensions.get_or_insert(8_u32), 7);
        assert_eq!(*extensions.get_or_insert("other"), "other");
        assert_eq!(extensions.get::<u32>().as_deref(), Some(&7));
    }
}
