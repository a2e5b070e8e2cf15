//! Every message of every layer with each field at its boundary values, generated from the schemas themselves.
//!
//! A message is written three times with all its fields absent, one, or at their largest, and once for each field with
//! that field at its largest and the others plausible. A field of type `Node` always gets the address of a real node;
//! otherwise the check of the node, which comes first, would hide the rest of the message from the test.

use std::collections::BTreeMap;

use bytes::Bytes;
use greylag_core::UniqueAddress;

/// One message to send.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) path: String,
    pub(crate) manifest: &'static str,
    pub(crate) payload: Bytes,
}

/// A schema, and the paths and manifests under which nodes decode its messages.
struct Layer {
    schema: &'static str,
    paths: &'static [&'static str],
    manifests: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer {
        schema: include_str!("../../proto/cluster.proto"),
        paths: &["control/cluster", "bulk/cluster"],
        manifests: &[
            "cluster.init-join",
            "cluster.init-join-ack",
            "cluster.join-deferred",
            "cluster.join-rejected",
            "cluster.welcome",
            "cluster.gossip",
            "cluster.gossip-status",
            "cluster.exiting-confirmed",
            "cluster.island-probe",
            "cluster.island-probe-answer",
            "cluster.heartbeat",
            "cluster.heartbeat-rsp",
        ],
    },
    Layer {
        schema: include_str!("../../proto/cluster.proto"),
        paths: &["control/singleton/sharding-Customer", "control/singleton-proxy/sharding-Customer"],
        manifests: &["cluster.singleton", "cluster.singleton-proxy"],
    },
    Layer {
        schema: include_str!("../../proto/bootstrap.proto"),
        paths: &["control/bootstrap"],
        manifests: &["gl.bootstrap"],
    },
    Layer { schema: include_str!("../../proto/watch.proto"), paths: &["control/watch"], manifests: &["gl.watch"] },
    Layer {
        schema: include_str!("../../proto/ddata.proto"),
        paths: &["ddata/sharding", "bulk/ddata/sharding", "ddata/replicator", "ddata-peers/replicator"],
        manifests: &["gl.ddata/1", "gl.ddata.fragment/1"],
    },
    Layer {
        schema: include_str!("../../proto/sharding.proto"),
        paths: &["control/sharding/Customer", "sharding/Customer", "sharding-direct/Customer"],
        manifests: &[
            "greylag.sharding.region",
            "greylag.sharding.coordinator",
            "greylag.sharding.peer",
            "greylag.sharding.mark",
        ],
    },
    Layer {
        schema: include_str!("../../proto/delivery.proto"),
        paths: &["sharding/Customer", "delivery/0"],
        manifests: &["gl.delivery.batch", "gl.delivery.bypass", "gl.delivery.stopped", "gl.delivery.upstream"],
    },
];

/// Every message of every layer, as if sent from `from` to `to`.
pub(crate) fn messages(to: &UniqueAddress, from: &UniqueAddress) -> Vec<Message> {
    let mut all = Vec::new();
    for layer in LAYERS {
        let schema = Schema::parse(layer.schema);
        let payloads: Vec<Bytes> = schema.messages.keys().flat_map(|name| schema.ends_of(name, to, from)).collect();
        for path in layer.paths {
            for manifest in layer.manifests {
                all.extend(payloads.iter().map(|payload| Message {
                    path: (*path).to_owned(),
                    manifest,
                    payload: payload.clone(),
                }));
            }
        }
    }
    all
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Varint,
    Fixed64,
    Fixed32,
    Text,
    Bytes,
    /// A message type by name, or an enum, which `Schema::messages` does not have.
    Named(String),
}

#[derive(Debug)]
struct Field {
    number: u64,
    kind: Kind,
    repeated: bool,
}

/// The message types of one schema file, with their fields.
#[derive(Debug, Default)]
struct Schema {
    messages: BTreeMap<String, Vec<Field>>,
}

/// Which value a field gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Absent,
    Plausible,
    Most,
}

/// The most levels of nested messages that are written.
const DEPTH: usize = 4;
/// The count of elements in a repeated field at its largest.
const MANY: usize = 20;

impl Schema {
    /// Parses the messages of a schema file. Nested definitions are entered under their own names; enums are skipped.
    fn parse(text: &str) -> Self {
        let mut schema = Self::default();
        // The open blocks, innermost last: the message to which their fields belong, for a `oneof` that of the
        // enclosing block; `None` for enums and services.
        let mut open: Vec<Option<String>> = Vec::new();
        for line in text.lines() {
            let line = line.split("//").next().unwrap_or_default().trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["message", name, ..] => {
                    schema.messages.entry(name.to_owned()).or_default();
                    let is_empty = line.ends_with('}');
                    open.extend((!is_empty).then(|| Some(name.to_owned())));
                }
                ["oneof", _, "{"] => open.push(open.last().cloned().flatten()),
                ["enum" | "service", ..] => open.push(None),
                ["}", ..] => drop(open.pop()),
                _ => {
                    if let (Some(Some(message)), Some(field)) = (open.last(), field(&words))
                        && let Some(fields) = schema.messages.get_mut(message)
                    {
                        fields.push(field);
                    }
                }
            }
        }
        schema
    }

    fn ends_of(&self, name: &str, to: &UniqueAddress, from: &UniqueAddress) -> Vec<Bytes> {
        let node = |address: &UniqueAddress| node(address);
        let nodes = [node(to), node(from)];
        let mut written: Vec<Bytes> = [End::Absent, End::Plausible, End::Most]
            .iter()
            .map(|end| self.write(name, &|_| *end, &nodes, DEPTH).into())
            .collect();
        for field in &self.messages[name] {
            let end = |number| if number == field.number { End::Most } else { End::Plausible };
            written.push(self.write(name, &end, &nodes, DEPTH).into());
        }
        written
    }

    fn write(&self, name: &str, end: &dyn Fn(u64) -> End, nodes: &[Vec<u8>; 2], depth: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for field in self.messages.get(name).into_iter().flatten() {
            let how = end(field.number);
            let times = match how {
                End::Absent => 0,
                End::Most if field.repeated => MANY,
                End::Plausible | End::Most => 1,
            };
            for _ in 0..times {
                self.write_field(field, how, nodes, depth, &mut out);
            }
        }
        out
    }

    fn write_field(&self, field: &Field, how: End, nodes: &[Vec<u8>; 2], depth: usize, out: &mut Vec<u8>) {
        let most = how == End::Most;
        match &field.kind {
            Kind::Varint => {
                varint(field.number << 3, out);
                varint(if most { u64::MAX } else { 1 }, out);
            }
            Kind::Fixed64 => {
                varint(field.number << 3 | 1, out);
                out.extend(if most { u64::MAX } else { 1 }.to_le_bytes());
            }
            Kind::Fixed32 => {
                varint(field.number << 3 | 5, out);
                out.extend(if most { u32::MAX } else { 1 }.to_le_bytes());
            }
            Kind::Text => {
                content(field.number, if most { "x".repeat(5000) } else { "127.0.0.1".to_owned() }.as_bytes(), out);
            }
            Kind::Bytes => content(field.number, &if most { vec![0xff; 5000] } else { vec![0xff; 16] }, out),
            // Field 1 is the addressee in most messages that have a node there.
            Kind::Named(name) if name == "Node" => content(field.number, &nodes[usize::from(field.number > 1)], out),
            Kind::Named(name) if self.messages.contains_key(name) => {
                let inner = if depth == 0 { Vec::new() } else { self.write(name, &|_| how, nodes, depth - 1) };
                content(field.number, &inner, out);
            }
            Kind::Named(_) => {
                varint(field.number << 3, out);
                varint(if most { u64::MAX } else { 1 }, out);
            }
        }
    }
}

/// Parses the line of a field, split at spaces: `repeated Node nodes = 2;`.
fn field(words: &[&str]) -> Option<Field> {
    let (repeated, words) = match words {
        ["repeated", rest @ ..] => (true, rest),
        ["optional", rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let at = words.iter().position(|word| *word == "=")?;
    let number = words.get(at + 1)?.trim_end_matches(';').parse().ok()?;
    let kind = match *words.first()? {
        "uint32" | "uint64" | "int32" | "int64" | "sint32" | "sint64" | "bool" => Kind::Varint,
        "fixed64" | "sfixed64" | "double" => Kind::Fixed64,
        "fixed32" | "sfixed32" | "float" => Kind::Fixed32,
        "string" => Kind::Text,
        // A map entry is encoded as a message; written as bytes, it does not decode, or decodes as empty.
        "bytes" | "map<string," => Kind::Bytes,
        name => Kind::Named(name.rsplit('.').next()?.to_owned()),
    };
    Some(Field { number, kind, repeated })
}

fn node(address: &UniqueAddress) -> Vec<u8> {
    let mut out = Vec::new();
    content(1, address.address().host().as_bytes(), &mut out);
    varint(2 << 3, &mut out);
    varint(address.address().port().into(), &mut out);
    varint(3 << 3 | 1, &mut out);
    out.extend(address.uid().get().to_le_bytes());
    out
}

fn content(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend(bytes);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use greylag_cluster::Message as Cluster;

    use super::*;

    fn ua(text: &str) -> UniqueAddress {
        text.parse().unwrap()
    }

    #[test]
    fn the_schemas_are_read_whole() {
        for layer in LAYERS {
            let schema = Schema::parse(layer.schema);
            let defined = layer.schema.lines().filter(|line| line.trim().starts_with("message ")).count();
            assert_eq!(schema.messages.len(), defined, "{:?}", schema.messages.keys());
        }
        let gossip = &Schema::parse(LAYERS[0].schema).messages["Gossip"];
        assert!(
            gossip.len() >= 9
                && gossip.iter().any(|field| field.kind == Kind::Named("Member".to_owned()) && field.repeated)
        );
    }

    /// Many messages of the attack can be decoded by a node: their values are extreme, but their encoding is right.
    #[test]
    fn many_messages_can_be_read() {
        let all = messages(&ua("127.0.0.1:1#5"), &ua("127.0.0.1:2#6"));
        let mut read: BTreeMap<&str, usize> = BTreeMap::new();
        let mut largest = 0;
        for message in all.iter().filter(|message| message.path == "control/cluster") {
            let Ok(decoded) = Cluster::from_bytes(message.manifest, message.payload.clone()) else { continue };
            *read.entry(message.manifest).or_default() += 1;
            if let Cluster::Heartbeat { seq, .. } = decoded {
                largest = largest.max(seq);
            }
        }
        assert_eq!(largest, u64::MAX);
        for manifest in
            ["cluster.init-join-ack", "cluster.exiting-confirmed", "cluster.heartbeat", "cluster.island-probe"]
        {
            assert!(read.contains_key(manifest), "{read:?}");
        }
        assert!(read.values().sum::<usize>() > 100, "{read:?}");
    }
}
