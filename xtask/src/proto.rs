//! Generates the protobuf code from `proto/`. The code is committed in its crates, so that builds need no protoc.
//!
//! The first line of a schema names the crate of its code: `// greylag: crate=<name> grpc=<bool>`.

use std::path::{Path, PathBuf};

use crate::run::{Failure, root, say};

struct Schema {
    path: PathBuf,
    crate_name: String,
    grpc: bool,
}

/// Generates the code of every schema; with `check` only compares it with the committed code.
pub(crate) fn proto(check: bool) -> Result<(), Failure> {
    let scratch = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let mut stale = Vec::new();
    for schema in schemas()? {
        let out = scratch.path().join(&schema.crate_name);
        std::fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
        generate(&schema, &out)?;
        let target = root().join("crates").join(&schema.crate_name).join("src/generated");
        for file in files(&out, "rs")? {
            let name = file.file_name().expect("listed by its name").to_owned();
            let fresh = read(&file)?;
            let committed = target.join(&name);
            if std::fs::read_to_string(&committed).ok().as_deref() == Some(&fresh) {
                continue;
            }
            stale.push(committed.display().to_string());
            if !check {
                std::fs::create_dir_all(&target)
                    .map_err(|error| format!("cannot make {}: {error}", target.display()))?;
                std::fs::write(&committed, fresh)
                    .map_err(|error| format!("cannot write {}: {error}", committed.display()))?;
            }
        }
        std::fs::remove_dir_all(&out).map_err(|error| format!("cannot clear {}: {error}", out.display()))?;
    }
    match (check, stale.is_empty()) {
        (_, true) => say("proto: the committed code matches the schemas"),
        (false, false) => say(&format!("proto: wrote {}", stale.join(", "))),
        (true, false) => return Err(format!("out of date: {}; run `cargo xtask proto`", stale.join(", "))),
    }
    Ok(())
}

fn schemas() -> Result<Vec<Schema>, Failure> {
    let mut schemas = Vec::new();
    for path in files(&root().join("proto"), "proto")? {
        let text = read(&path)?;
        let first = text.lines().next().unwrap_or_default();
        let word = |key: &str| {
            first
                .strip_prefix("// greylag:")
                .and_then(|words| words.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')))
                .map(ToOwned::to_owned)
                .ok_or(format!("{}: the first line must be `// greylag: crate=<name> grpc=<bool>`", path.display()))
        };
        let (crate_name, grpc) = (word("crate")?, word("grpc")? == "true");
        schemas.push(Schema { path, crate_name, grpc });
    }
    Ok(schemas)
}

fn generate(schema: &Schema, out: &Path) -> Result<(), Failure> {
    let include = root().join("proto");
    let descriptors = protox::compile([&schema.path], [&include]).map_err(|error| format!("{error}"))?;
    let failed = |error| format!("{}: {error}", schema.path.display());
    let mut config = prost_build::Config::new();
    config.bytes(["."]).out_dir(out);
    if schema.grpc {
        tonic_prost_build::configure()
            .out_dir(out)
            .build_transport(false)
            .compile_fds_with_config(descriptors, config)
            .map_err(failed)
    } else {
        config.compile_fds(descriptors).map_err(failed)
    }
}

fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
