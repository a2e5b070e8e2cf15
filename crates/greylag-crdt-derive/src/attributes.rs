//! The attribute `#[crdt(…)]` of a derive.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{DeriveInput, LitStr, Path};

/// The content of `#[crdt(…)]`.
pub(crate) struct Attributes {
    tag: LitStr,
    /// The path of `greylag-crdt` in generated code.
    pub(crate) krate: Tokens,
}

impl Attributes {
    pub(crate) fn of(input: &DeriveInput) -> syn::Result<Self> {
        let (mut tag, mut krate) = (None, quote!(::greylag_crdt));
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("crdt")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("tag") {
                    tag = Some(meta.value()?.parse::<LitStr>()?);
                } else if meta.path.is_ident("crate") {
                    let path: Path = meta.value()?.parse::<LitStr>()?.parse()?;
                    krate = quote!(#path);
                } else {
                    return Err(meta.error("expected `tag` or `crate`"));
                }
                Ok(())
            })?;
        }
        let missing = || syn::Error::new_spanned(&input.ident, "give it a stable name: #[crdt(tag = \"name/1\")]");
        Ok(Self { tag: tag.ok_or_else(missing)?, krate })
    }

    /// The tag of the type: its name and the tags of its parameters.
    pub(crate) fn type_tag(&self, input: &DeriveInput) -> Tokens {
        let Self { tag, krate } = self;
        let parameters: Vec<_> = input.generics.type_params().map(|parameter| &parameter.ident).collect();
        if parameters.is_empty() {
            quote!(#krate::TypeTag::new(#tag))
        } else {
            quote!(#krate::TypeTag::with(#tag, &[#(&#parameters::TAG),*]))
        }
    }
}
