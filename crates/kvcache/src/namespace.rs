//! Who may share KV with whom.
//!
//! Equal tokens give equal KV only under the same model, adapter and numeric settings, and only
//! tenants that trust each other may learn from a hit that somebody else sent the same prompt. All
//! of that is a [`Namespace`], the root of every chain of blocks.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// What must be equal for KV to be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceKey<'a> {
    /// The model file's fingerprint.
    pub model: u128,
    /// The adapter's fingerprint, where one is used.
    pub adapter: Option<u128>,
    /// The precision of activations, by name.
    pub activations: &'a str,
    /// The types in which keys and values are stored, by name.
    pub kv_type: &'a str,
    /// Position settings that differ from the model file's, in any fixed spelling.
    pub rope: &'a str,
    /// A fingerprint of inputs that are not tokens (images, say); empty where there are none.
    pub embedding_inputs: &'a [u8],
    /// Keeps tenants apart: two that differ here never share, whatever else collides.
    pub tenant_salt: u64,
}

/// The root of a hash chain: 128 bits of everything in a [`NamespaceKey`], and the tenant's salt as
/// it is, so that tenants are told apart without relying on a hash.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Namespace {
    hash: u128,
    tenant_salt: u64,
}

impl Namespace {
    /// The namespace of `key`.
    pub fn new(key: &NamespaceKey<'_>) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(key.model.to_le_bytes());
        bytes.push(u8::from(key.adapter.is_some()));
        bytes.extend(key.adapter.unwrap_or(0).to_le_bytes());
        for part in [
            key.activations.as_bytes(),
            key.kv_type.as_bytes(),
            key.rope.as_bytes(),
            key.embedding_inputs,
        ] {
            // The length goes first, so that no two lists of parts spell the same bytes.
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes.extend(key.tenant_salt.to_le_bytes());
        Self { hash: xxh3_128(&bytes), tenant_salt: key.tenant_salt }
    }

    /// 64 bits of it, where chains of blocks start.
    pub(crate) const fn seed(&self) -> u64 {
        (self.hash as u64) ^ ((self.hash >> 64) as u64).rotate_left(32)
    }
}

/// Whoever blocks are charged to.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct TenantId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_tells_namespaces_apart() {
        let base = NamespaceKey { model: 7, activations: "int8", kv_type: "f16", ..<_>::default() };
        let others = [
            NamespaceKey { model: 8, ..base },
            NamespaceKey { adapter: Some(0), ..base },
            NamespaceKey { adapter: Some(1), ..base },
            NamespaceKey { activations: "int", kv_type: "8f16", ..base },
            NamespaceKey { activations: "f32", ..base },
            NamespaceKey { kv_type: "int8", ..base },
            NamespaceKey { rope: "yarn:4", ..base },
            NamespaceKey { embedding_inputs: &[0], ..base },
            NamespaceKey { tenant_salt: 1, ..base },
        ];
        let mut all: Vec<Namespace> = others.iter().map(Namespace::new).collect();
        all.push(Namespace::new(&base));
        assert_eq!(Namespace::new(&base), Namespace::new(&base));
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{i}");
        }
    }
}
