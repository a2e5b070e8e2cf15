//! Reads the modules of a crate from the text, and resolves the names in them.
//!
//! Implements enough of Rust's name resolution to find the module of a path: children, items, imports, re-exports and
//! globs. Code for tests is left out. Method calls are not resolved: an arrow between modules is a path in the text of one
//! that names an item of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::run::Failure;

/// A crate of the workspace.
pub(crate) struct Crate {
    /// All modules; the first is the root.
    pub(crate) modules: Vec<Module>,
}

/// A module: a file, or a part of one.
#[derive(Default)]
pub(crate) struct Module {
    /// Full name, such as `greylag-cluster::core::exchange`.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// Index of the module that is the whole file.
    pub(crate) whole: usize,
    /// The types, with the number of their fields.
    pub(crate) types: Vec<(String, usize)>,
    /// The types with an `impl` in this module, as paths.
    pub(crate) impls: BTreeSet<Vec<String>>,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Each path in the code, and the numbers of its lines.
    mentions: BTreeMap<Vec<String>, Vec<usize>>,
}

/// One name that a `use` imports.
struct Import {
    /// The name in this module; `*` for a glob.
    name: String,
    path: Vec<String>,
    line: usize,
    /// Whether the import is a re-export.
    reexported: bool,
}

/// Target of a path: a module, or an item in it.
pub(crate) type Place = (usize, Option<String>);

/// The arrows between modules, with the numbers of the lines that make them.
pub(crate) type Arrows = BTreeMap<(usize, usize), BTreeSet<usize>>;

impl Crate {
    /// Reads the crate in this folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let root = ["src/lib.rs", "src/main.rs"].into_iter().map(|file| folder.join(file)).find(|file| file.is_file());
        let root = root.ok_or(format!("{} has neither src/lib.rs nor src/main.rs", folder.display()))?;
        let mut this = Self { modules: Vec::new() };
        this.add_file(name, &root, None)?;
        Ok(this)
    }

    fn add_file(&mut self, name: String, file: &Path, parent: Option<usize>) -> Result<usize, Failure> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}, which is the module {name}: {error}", file.display()))?;
        let parsed =
            syn::parse_file(&text).map_err(|error| format!("{} is not valid Rust: {error}", file.display()))?;
        let stem = file.file_stem().unwrap_or_default();
        let beside = file.with_file_name("");
        let owns_folder = ["lib", "main", "mod"].iter().any(|owner| stem == *owner);
        let folder = if owns_folder { beside } else { beside.join(stem) };
        let whole = self.modules.len();
        let module = Module { name, file: file.to_owned(), whole, parent, ..Module::default() };
        self.add(module, &folder, &parsed.items)
    }

    /// Adds a module and its items; the files of its child modules are in `folder`.
    fn add(&mut self, module: Module, folder: &Path, items: &[syn::Item]) -> Result<usize, Failure> {
        let at = self.modules.len();
        let Module { name, file, whole, .. } = &module;
        let (name, file, whole) = (name.clone(), file.clone(), *whole);
        self.modules.push(module);
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let syn::Item::Mod(inner) = item else {
                self.modules[at].visit_item(item);
                continue;
            };
            let called = inner.ident.to_string();
            let (name, folder) = (format!("{name}::{called}"), folder.join(&called));
            let child = if let Some((_, items)) = &inner.content {
                let inner = Module { name, file: file.clone(), whole, parent: Some(at), ..Module::default() };
                self.add(inner, &folder, items)?
            } else {
                self.add_file(name, &file_of(inner, &file, &folder), Some(at))?
            };
            self.modules[at].children.insert(called, child);
        }
        Ok(at)
    }

    /// The target of a path in a module; `None` if it is in another crate.
    pub(crate) fn resolve(&self, from: usize, path: &[String]) -> Option<Place> {
        self.follow(from, path, &mut BTreeSet::new())
    }

    fn follow(&self, from: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Option<Place> {
        let mut at = from;
        let mut is_anchored = false;
        for name in path {
            match name.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.modules[at].parent?,
                _ => match self.find(at, name, seen) {
                    Some((module, None)) => at = module,
                    Some(item) => return Some(item),
                    // An item that a macro generates has no name in the text.
                    None => return is_anchored.then(|| (at, Some(name.clone()))),
                },
            }
            is_anchored = true;
        }
        Some((at, None))
    }

    /// The target of a name in a module.
    fn find(&self, at: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Place> {
        if !seen.insert((at, name.to_owned())) {
            return None;
        }
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some((*child, None));
        }
        let here = Some((at, Some(name.to_owned())));
        if module.items.contains(name) {
            return here;
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == name) {
            // A name imported from another crate counts as an item of this module.
            return self.follow(at, &import.path, seen).or(here);
        }
        let globs = module.imports.iter().filter(|import| import.name == "*");
        globs.filter_map(|glob| self.glob(at, glob)).find_map(|of| self.find(of, name, seen))
    }

    /// The module of this crate that a glob imports.
    fn glob(&self, at: usize, glob: &Import) -> Option<usize> {
        let (module, item) = self.resolve(at, &glob.path)?;
        item.is_none().then_some(module)
    }

    /// The arrows between files, with the numbers of the lines that make them.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (at, module) in self.modules.iter().enumerate() {
            let mut arrow = |to: usize, lines: &[usize]| {
                let (from, to) = (module.whole, self.modules[to].whole);
                if from != to {
                    arrows.entry((from, to)).or_default().extend(lines);
                }
            };
            for (path, lines) in &module.mentions {
                match self.resolve(at, path) {
                    // A single name may be a variable with the name of a module.
                    Some((to, item)) if path.len() > 1 || item.is_some() => arrow(to, lines),
                    _ => {}
                }
            }
            for import in module.imports.iter().filter(|import| import.name != "*") {
                if let Some(to) = self.import_arrow(at, import) {
                    arrow(to, &[import.line]);
                }
            }
        }
        arrows
    }

    /// The target of an import itself, whether or not the code uses the name.
    fn import_arrow(&self, at: usize, import: &Import) -> Option<usize> {
        let (to, item) = self.resolve(at, &import.path)?;
        let module = &self.modules[at];
        let is_mentioned = || module.mentions.keys().any(|path| path[0] == import.name);
        // A module does not use the children that it re-exports. A module that is imported and mentioned makes no arrow by
        // the import, because the mentions lead to its items.
        let leads = !(import.reexported && self.is_below(to, module.whole)) && (item.is_some() || !is_mentioned());
        leads.then_some(to)
    }

    /// The modules that are whole files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().enumerate().filter(|(at, module)| *at == module.whole).map(|(_, module)| module)
    }

    fn is_below(&self, mut module: usize, above: usize) -> bool {
        while module != above {
            let Some(parent) = self.modules[module].parent else { return false };
            module = parent;
        }
        true
    }
}

/// The file of a module that is declared in `file` and whose children are in `folder`.
fn file_of(module: &syn::ItemMod, file: &Path, folder: &Path) -> PathBuf {
    let path = module.attrs.iter().filter(|attribute| attribute.path().is_ident("path")).find_map(|attribute| {
        let syn::Meta::NameValue(syn::MetaNameValue { value: syn::Expr::Lit(literal), .. }) = &attribute.meta else {
            return None;
        };
        if let syn::Lit::Str(path) = &literal.lit { Some(path.value()) } else { None }
    });
    match path {
        Some(path) => file.with_file_name(path),
        None if folder.with_extension("rs").is_file() => folder.with_extension("rs"),
        None => folder.join("mod.rs"),
    }
}

/// Whether an item is compiled for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        condition == "test" || condition.starts_with("all") && condition.contains("test") && !condition.contains("any")
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{
        Const, Enum, ExternCrate, Fn, ForeignMod, Impl, Macro, Mod, Static, Struct, Trait, TraitAlias, Type, Union, Use,
    };
    match item {
        Const(item) => &item.attrs,
        Enum(item) => &item.attrs,
        ExternCrate(item) => &item.attrs,
        Fn(item) => &item.attrs,
        ForeignMod(item) => &item.attrs,
        Impl(item) => &item.attrs,
        Macro(item) => &item.attrs,
        Mod(item) => &item.attrs,
        Static(item) => &item.attrs,
        Struct(item) => &item.attrs,
        Trait(item) => &item.attrs,
        TraitAlias(item) => &item.attrs,
        Type(item) => &item.attrs,
        Union(item) => &item.attrs,
        Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<&syn::Ident> {
    use syn::Item::{Const, Enum, Fn, Macro, Static, Struct, Trait, TraitAlias, Type, Union};
    match item {
        Const(item) => Some(&item.ident),
        Enum(item) => Some(&item.ident),
        Fn(item) => Some(&item.sig.ident),
        Macro(item) => item.ident.as_ref(),
        Static(item) => Some(&item.ident),
        Struct(item) => Some(&item.ident),
        Trait(item) => Some(&item.ident),
        TraitAlias(item) => Some(&item.ident),
        Type(item) => Some(&item.ident),
        Union(item) => Some(&item.ident),
        _ => None,
    }
}

/// Collects the items and paths of one module; inline child modules are visited separately.
impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        self.items.extend(name_of(item).map(ToString::to_string));
        match item {
            syn::Item::Struct(item) => self.types.push((item.ident.to_string(), item.fields.len())),
            syn::Item::Enum(item) => {
                let variant =
                    |variant: &syn::Variant| (format!("{}::{}", item.ident, variant.ident), variant.fields.len());
                self.types.extend(item.variants.iter().map(variant));
            }
            syn::Item::Impl(item) => self.impls.extend(path_of(&item.self_ty)),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let reexported = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, Vec::new(), reexported);
    }

    /// Ignores visibility: `pub(in crate::a)` is no use of `a`.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// Ignores attributes: documentation and derives are not code of this module.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        self.mention(names, line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}

impl Module {
    fn mention(&mut self, path: Vec<String>, line: usize) {
        let is_name = path.len() > 1 || !["self", "super", "crate", "Self"].contains(&path[0].as_str());
        if is_name {
            self.mentions.entry(path).or_default().push(line);
        }
    }

    fn import(&mut self, tree: &syn::UseTree, mut path: Vec<String>, reexported: bool) {
        let (name, ident) = match tree {
            syn::UseTree::Path(next) => {
                path.push(next.ident.to_string());
                return self.import(&next.tree, path, reexported);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, path.clone(), reexported));
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), Some(&name.ident)),
            syn::UseTree::Rename(rename) => (rename.rename.to_string(), Some(&rename.ident)),
            syn::UseTree::Glob(_) => ("*".to_owned(), None),
        };
        // `use a::b::{self}` imports `b`.
        let is_self = ident.is_some_and(|ident| ident == "self");
        path.extend(ident.filter(|_| !is_self).map(ToString::to_string));
        let name = if is_self && name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        let line = ident.map_or(0, |ident| ident.span().start().line);
        self.imports.push(Import { name, path, line, reexported });
    }

    /// Collects the paths in the tokens of a macro call: names with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons): (Vec<String>, usize, usize) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
                TokenTree::Ident(name) => {
                    self.mention_in_macro(std::mem::take(&mut path), line);
                    (path, line) = (vec![name.to_string()], name.span().start().line);
                }
                TokenTree::Punct(colon) if colon.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                _ => self.mention_in_macro(std::mem::take(&mut path), line),
            }
            colons = 0;
        }
        self.mention_in_macro(path, line);
    }

    fn mention_in_macro(&mut self, path: Vec<String>, line: usize) {
        // A single name in lower case is a variable or a field.
        if path.len() > 1 || path.first().is_some_and(|name| name.starts_with(char::is_uppercase)) {
            self.mention(path, line);
        }
    }
}

/// The path of a type, without its arguments.
fn path_of(of: &syn::Type) -> Option<Vec<String>> {
    let syn::Type::Path(of) = of else { return None };
    Some(of.path.segments.iter().map(|segment| segment.ident.to_string()).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A crate with these files below `src`.
    pub(crate) fn a_crate(files: &[(&str, &str)]) -> Crate {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("x");
        for (file, text) in files {
            let file = folder.join("src").join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Crate::read(&folder).unwrap()
    }

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let read = a_crate(files);
        let name = |module: usize| read.modules[module].name.clone();
        let shown = |((from, to), lines): (&(usize, usize), &BTreeSet<usize>)| {
            format!("{} -> {} {lines:?}", name(*from), name(*to))
        };
        read.arrows().iter().map(shown).collect()
    }

    #[test]
    fn imports_and_paths_in_code_are_arrows_and_tests_are_not() {
        let a = "use crate::b::{self, Two};\nfn f(two: Two) { b::deep::g(); }\n#[cfg(test)]\nmod tests { use crate::c::X; }\n\
                 #[cfg(test)]\nfn t() { crate::c::x() }";
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", a),
            ("b.rs", "pub mod deep;\npub struct Two;"),
            ("b/deep.rs", "pub fn g() { assert!(super::super::c::ok(crate::a::F)); }"),
            ("c.rs", "pub struct X;"),
        ];
        assert_eq!(
            arrows(&files),
            ["x::a -> x::b {1, 2}", "x::a -> x::b::deep {2}", "x::b::deep -> x::a {1}", "x::b::deep -> x::c {1}"]
        );
    }

    #[test]
    fn an_arrow_leads_to_the_module_that_defines_a_reexported_name() {
        let files = [
            ("lib.rs", "mod a; mod b;\npub use b::{One, Two};\nfn f(_: Two) {}"),
            ("a.rs", "use crate::One;\nuse crate::b::*;\nfn f(_: Three) {}"),
            ("b/mod.rs", "mod c;\npub use self::c::*;\npub struct Two;\nmod inline { use super::Two; }"),
            ("b/c.rs", "pub struct One;\npub struct Three;"),
        ];
        assert_eq!(arrows(&files), ["x -> x::b {3}", "x::a -> x::b::c {1, 3}"]);
    }

    #[test]
    fn a_name_of_another_crate_makes_no_arrow() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use std::fmt;\nfn f(fmt: &fmt::Error, b: Option<u8>) { b }"),
            ("b.rs", "pub(in crate::a) use bytes::Bytes;"),
        ];
        assert!(arrows(&files).is_empty(), "{:?}", arrows(&files));
    }
}
