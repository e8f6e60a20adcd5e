//! Pins of the twin: a set of prefixes, each of whole blocks.

use std::collections::BTreeSet;

use super::data::{Entry, Naive};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, TenantId, Token};
use crate::pins::{PinLimit, PinScope};

impl Naive {
    pub(crate) fn pin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> Result<bool, PinLimit> {
        let whole = tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS].to_vec();
        if !self.is_known(namespace, &whole) {
            return Ok(false);
        }
        let mut more = self.pins.clone();
        more.insert((namespace, whole));
        self.check_pins(&more, namespace).inspect_err(|_| self.events.pins_refused += 1)?;
        self.pins = more;
        Ok(true)
    }

    /// Checks whether the pins may grow to `more`: one additional pin, in a namespace.
    fn check_pins(
        &self,
        more: &BTreeSet<(NamespaceId, Vec<Token>)>,
        namespace: NamespaceId,
    ) -> Result<(), PinLimit> {
        let (tenant, share) = (self.tenant(namespace), self.shares.get(&namespace));
        let quota = share.and_then(|share| share.quota_blocks).unwrap_or(usize::MAX);
        let part = share.and_then(|share| share.pinned_max).unwrap_or(usize::MAX).min(quota);
        let needed = self.pinned_by(more, None) - self.pinned();
        let scopes = [(PinScope::Tenant, Some(tenant), part), (PinScope::All, None, self.pinned_max)];
        for (scope, tenant, limit) in scopes {
            let pinned = self.pinned_by(&self.pins, tenant);
            if needed > 0 && pinned + needed > limit {
                return Err(PinLimit { needed, pinned, limit, scope });
            }
        }
        Ok(())
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned_by(&self.pins, None)
    }

    /// The pinned prefixes of a namespace that begin with these tokens.
    pub(crate) fn pins_through(&self, namespace: NamespaceId, tokens: &[Token]) -> Vec<Vec<Token>> {
        let through = self.pins.iter().filter(|(of, whole)| *of == namespace && whole.starts_with(tokens));
        through.map(|(_, whole)| whole.clone()).collect()
    }

    /// Blocks that some pins protect, of a tenant or of all.
    fn pinned_by(&self, pins: &BTreeSet<(NamespaceId, Vec<Token>)>, tenant: Option<TenantId>) -> usize {
        let keeps = |entry: &&Entry| {
            pins.iter().any(|(namespace, whole)| {
                *namespace == entry.namespace
                    && tenant.is_none_or(|tenant| self.tenant(*namespace) == tenant)
                    && whole.starts_with(&entry.prefix)
            })
        };
        self.entries.iter().filter(keeps).count()
    }

    pub(crate) fn unpin(&mut self, namespace: NamespaceId, tokens: &[Token]) -> bool {
        let whole = tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS].to_vec();
        let is_pinned = self.pins.contains(&(namespace, whole.clone()));
        if is_pinned {
            self.take_back(vec![(namespace, whole)]);
        }
        is_pinned
    }

    pub(crate) fn unpin_under(&mut self, namespace: NamespaceId, tokens: &[Token]) -> usize {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let under = |(of, pin): &&(NamespaceId, Vec<Token>)| *of == namespace && pin.starts_with(whole);
        let pins: Vec<_> = self.pins.iter().filter(under).filter(|_| !whole.is_empty()).cloned().collect();
        let count = pins.len();
        self.take_back(pins);
        count
    }

    /// Removes pins, the shorter ones first.
    pub(super) fn take_back(&mut self, pins: Vec<(NamespaceId, Vec<Token>)>) {
        for (namespace, whole) in &pins {
            self.pins.remove(&(*namespace, whole.clone()));
            self.unkeep_places(self.home(*namespace, whole), whole);
            for block in (1..=whole.len() / BLOCK_POSITIONS).rev() {
                self.touch(*namespace, &whole[..block * BLOCK_POSITIONS]);
            }
        }
        self.drop_expired();
        pins.iter().for_each(|(namespace, _)| self.keep_quota(*namespace, 0, None));
    }
}
