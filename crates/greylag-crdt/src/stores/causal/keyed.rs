//! The common methods of types whose store is a map of keys: sets, whose elements are the keys, and maps.

/// The inherent methods and traits that are the same for all: `keyed!("gl.orset/1", OrSet<T: Element>, "set", element:
/// T, OrSetStore<T>)` for a type with one field `causal`. Trait methods of one type only stand at the end, in braces.
macro_rules! keyed {
    (
        $tag:literal, $name:ident<$($parameter:ident: $bound:ident),+>, $noun:literal, $key:ident: $of:ident, $store:ty
        $(, { $($more:tt)* })?
    ) => {
        impl<$($parameter: $bound),+> $name<$($parameter),+> {
            #[doc = concat!("The empty ", $noun, ".")]
            pub fn new() -> Self {
                Self { causal: $crate::stores::causal::Causal::default() }
            }

            fn store(&self) -> &$store {
                self.causal.store()
            }

            fn edit(&mut self) -> $crate::stores::store::StoreMut<'_, $store> {
                $crate::stores::store::StoreMut(&mut self.causal)
            }

            #[doc = concat!("Removes the ", stringify!($key), " as far as it is seen here. Returns whether it was present.")]
            pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut $crate::causality::cx::UpdateCx<'_>, $key: &Q) -> bool
            where
                $of: std::borrow::Borrow<Q>,
            {
                self.edit().remove(cx, $key)
            }

            /// Removes every key or element that this replica sees.
            pub fn clear(&mut self, cx: &mut $crate::causality::cx::UpdateCx<'_>) {
                self.edit().clear(cx);
            }

            #[doc = concat!("Whether the ", stringify!($key), " is present.")]
            pub fn contains<Q: Ord + ?Sized>(&self, $key: &Q) -> bool
            where
                $of: std::borrow::Borrow<Q>,
            {
                self.store().contains($key)
            }

            #[doc = concat!("How many ", stringify!($key), "s there are.")]
            pub fn len(&self) -> usize {
                self.store().len()
            }

            #[doc = concat!("Whether there is no ", stringify!($key), ".")]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The dots that this state has seen, for diagnosis.
            pub fn context(&self) -> &$crate::causality::context::Context {
                self.causal.context()
            }
        }

        impl<$($parameter: $bound),+> Default for $name<$($parameter),+> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<$($parameter: $bound),+> $crate::data::ReplicatedData for $name<$($parameter),+> {
            $crate::stores::causal::causal_data!($crate::TypeTag::with($tag, &[$(&$parameter::TAG),+]), $store);

            fn ranged(&self) -> Option<&dyn $crate::ranges::Ranged> {
                Some(&self.causal)
            }

            fn ranged_mut(&mut self) -> Option<&mut dyn $crate::ranges::Ranged> {
                Some(&mut self.causal)
            }

            $($($more)*)?
        }
    };
}
pub(crate) use keyed;
