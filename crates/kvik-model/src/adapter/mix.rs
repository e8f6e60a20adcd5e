//! The adapters that a request is computed with, as data.

/// Domain of [`AdapterMix::digest`].
const DOMAIN: &str = "kvik 2026-11-23 adapter mix v1";

/// The id of an adapter of an engine: its index among those loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u32);

/// An adapter with the strength at which it applies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: AdapterId,
    /// Factor of its contribution; not 0.
    pub scale: f32,
}

/// The adapters that apply to a request, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterMix {
    uses: Vec<AdapterUse>,
    digest: [u8; 32],
}

impl AdapterMix {
    /// A mix of these adapters, each with the digest of its weights. Adapters with scale 0 are left out; `None` if none
    /// is left.
    ///
    /// The order in which they are given does not matter: they apply in the order of their digests.
    pub fn new(uses: impl IntoIterator<Item = (AdapterUse, [u8; 32])>) -> Option<AdapterMix> {
        let mut uses: Vec<_> = uses.into_iter().filter(|(used, _)| used.scale != 0.0).collect();
        uses.sort_unstable_by_key(|&(used, digest)| (digest, used.adapter));
        let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
        for (used, digest) in &uses {
            hasher.update(digest);
            hasher.update(&used.scale.to_bits().to_le_bytes());
        }
        let uses: Vec<AdapterUse> = uses.into_iter().map(|(used, _)| used).collect();
        (!uses.is_empty()).then(|| AdapterMix { uses, digest: *hasher.finalize().as_bytes() })
    }

    /// The adapters, in the order in which they apply.
    pub fn uses(&self) -> &[AdapterUse] {
        &self.uses
    }

    /// Digest of the weights and scales of all adapters, which separates keys and values computed with them from all
    /// others.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(uses: &[(u32, u8, f32)]) -> Option<AdapterMix> {
        let used =
            |&(adapter, digest, scale)| (AdapterUse { adapter: AdapterId(adapter), scale }, [digest; 32]);
        AdapterMix::new(uses.iter().map(used))
    }

    #[test]
    fn what_computes_the_same_has_the_same_digest_in_any_order_and_under_any_id() {
        let one = mix(&[(0, 7, 1.0), (1, 3, 0.5)]).unwrap();
        let other = mix(&[(4, 3, 0.5), (2, 9, 0.0), (0, 7, 1.0), (3, 9, -0.0)]).unwrap();
        assert_eq!(one.digest(), other.digest());
        assert_eq!(one.uses().iter().map(|used| used.scale).collect::<Vec<_>>(), [0.5, 1.0]);
        assert_eq!(mix(&[(0, 7, 0.0)]), None);
    }

    #[test]
    fn weights_and_scales_decide_the_digest() {
        let mixes = [
            mix(&[(0, 7, 1.0)]),
            mix(&[(0, 8, 1.0)]),
            mix(&[(0, 7, 0.5)]),
            mix(&[(0, 7, -1.0)]),
            mix(&[(0, 7, 1.0), (1, 8, 1.0)]),
            mix(&[(0, 7, 1.0), (1, 7, 1.0)]),
        ];
        let mut digests: Vec<[u8; 32]> = mixes.iter().flatten().map(AdapterMix::digest).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), mixes.len());
    }
}
