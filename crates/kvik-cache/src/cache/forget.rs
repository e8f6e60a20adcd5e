//! Deletion of prompts with everything that was computed for them alone.

use super::life::Cache;
use crate::deleted::{DeletedPrompts, DeletedWalk};
use crate::ids::{BLOCK_POSITIONS, NamespaceId, NodeId};

/// The result of a deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForgottenBlocks {
    /// Freed blocks.
    pub freed: usize,
    /// Blocks that remain for now, since running sequences use them.
    pub in_use: usize,
}

/// A visited node, and how many of its blocks remain if nothing after them does.
struct Visited {
    node: NodeId,
    kept: usize,
}

impl Cache {
    /// Drops the prompts to be deleted and everything that continues them, except what other prompts share. Pinned
    /// blocks remain, and blocks in use remain for now. Dropped blocks leave no ghosts.
    pub fn forget(&mut self, namespace: NamespaceId, prompts: &DeletedPrompts) -> ForgottenBlocks {
        let mut forgotten = ForgottenBlocks::default();
        // Children are handled before their parents.
        for Visited { node, kept } in self.visited(namespace, prompts).into_iter().rev() {
            let blocks = self.radix.arena[node].blocks().len();
            if kept == blocks || !self.radix.arena[node].children.is_empty() {
                continue;
            }
            if self.radix.candidate(node).is_none() {
                let is_pinned = self.radix.arena[node].pins > 0;
                forgotten.in_use += if is_pinned { 0 } else { blocks - kept };
                continue;
            }
            if kept > 0 {
                // `node` becomes the part after the cut; the part before it is a new node.
                self.radix.cut(node, kept);
            }
            forgotten.freed += self.drop_leaf(node);
        }
        forgotten
    }

    /// The nodes that contain a block of these prompts, parents before children.
    fn visited(&self, namespace: NamespaceId, prompts: &DeletedPrompts) -> Vec<Visited> {
        let root = self.roots[&namespace];
        let base = self.radix.base(root);
        let mut walk = Some(prompts.start());
        for block in base.chunks(BLOCK_POSITIONS) {
            walk = walk.and_then(|walk| prompts.behind(&walk, block));
        }
        let mut open: Vec<(NodeId, DeletedWalk)> = walk.map(|walk| (root, walk)).into_iter().collect();
        let mut visited = Vec::new();
        while let Some((at, walk)) = open.pop() {
            for &child in self.radix.arena[at].children.values() {
                let (kept, behind) = self.followed(child, walk.clone(), prompts);
                visited.push(Visited { node: child, kept });
                open.extend(behind.map(|walk| (child, walk)));
            }
        }
        visited
    }

    /// Returns how many blocks of a node remain if nothing after them does, and the walk at its end if a prompt to
    /// be deleted continues there.
    fn followed(
        &self,
        node: NodeId,
        walk: DeletedWalk,
        prompts: &DeletedPrompts,
    ) -> (usize, Option<DeletedWalk>) {
        let blocks = self.radix.arena[node].blocks();
        let (mut walk, mut kept) = (walk, 0);
        for (index, &block) in blocks.iter().enumerate() {
            match prompts.behind(&walk, self.radix.labels.tokens(block)) {
                Some(next) => walk = next,
                // No prompt to be deleted continues like this.
                None => return (blocks.len(), None),
            }
            if !walk.is_gone() {
                kept = index + 1;
            }
        }
        (kept, Some(walk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, CacheConfig, Lifetime, Namespaces, Policy, SeqId, Token};

    const NAMESPACES: Namespaces<'_> = Namespaces { model: [0; 32], kv_format: "f16/f16", adapter: None };

    fn cache() -> (Cache, NamespaceId) {
        let mut cache =
            Cache::new(CacheConfig { blocks: 256, policy: Policy::Lru, ghosts: 64, pinned_max: 64 }).unwrap();
        let namespace = cache.namespace(&NAMESPACES.shared([0; 16]));
        (cache, namespace)
    }

    fn admit(cache: &mut Cache, namespace: NamespaceId, seq: u64, prompt: &[Token]) {
        let (seq, reuse_max, lifetime) = (SeqId(seq), prompt.len(), Lifetime::default());
        let admission = Admission { seq, namespace, prompt, reuse_max, positions: prompt.len(), lifetime };
        cache.admit(admission).unwrap();
    }

    fn run(cache: &mut Cache, namespace: NamespaceId, prompt: &[Token]) {
        admit(cache, namespace, 1, prompt);
        cache.finish(SeqId(1), prompt);
    }

    fn behind_system(from: Token, count: usize) -> Vec<Token> {
        (0..40).chain((from..).take(count)).collect()
    }

    #[test]
    fn a_conversation_goes_with_its_answers_and_what_others_share_stays() {
        let (mut cache, namespace) = cache();
        let (one, two) = (behind_system(1000, 50), behind_system(2000, 50));
        let (answered, fork) = ([&one[..], &[7; 30]].concat(), [&one[..70], &[8; 30]].concat());
        for prompt in [&one, &two, &answered, &fork] {
            run(&mut cache, namespace, prompt);
        }
        let known = |cache: &Cache, prompt: &[Token]| cache.lookup(namespace, prompt).tokens;
        let prompts = DeletedPrompts::new(vec![one.clone()], vec![two.clone(), fork.clone()]);
        let first = cache.forget(namespace, &prompts);
        assert!(first.freed > 0 && first.in_use == 0, "{first:?}");
        assert_eq!([&two, &fork].map(|prompt| known(&cache, prompt)), [two.len(), fork.len()]);
        assert_eq!(known(&cache, &answered), 70, "what the fork has, to the token");
        assert_eq!(cache.forget(namespace, &prompts), ForgottenBlocks::default());
        let rest = DeletedPrompts::new(vec![fork.clone()], vec![two.clone()]);
        cache.forget(namespace, &rest);
        assert_eq!((known(&cache, &fork), known(&cache, &two)), (40, two.len()));
        cache.forget(namespace, &DeletedPrompts::new(vec![two.clone()], Vec::new()));
        assert_eq!(cache.stats().shared, 0);
        cache.check().unwrap();
    }

    #[test]
    fn what_ends_where_another_one_ends_stays_for_that() {
        let (mut cache, namespace) = cache();
        let (long, short) = ((0..200).collect::<Vec<Token>>(), (0..64).collect::<Vec<Token>>());
        run(&mut cache, namespace, &long);
        let prompts = DeletedPrompts::new(vec![long.clone()], vec![short.clone()]);
        assert_eq!(cache.forget(namespace, &prompts), ForgottenBlocks { freed: 9, in_use: 0 });
        assert_eq!(cache.lookup(namespace, &long).tokens, 64);
        cache.check().unwrap();
    }

    #[test]
    fn what_runs_stays_for_now_and_what_is_pinned_for_good() {
        let (mut cache, namespace) = cache();
        let (running, pinned) = (behind_system(1000, 50), behind_system(3000, 24));
        run(&mut cache, namespace, &pinned);
        assert_eq!(cache.pin(namespace, &pinned), Ok(true));
        admit(&mut cache, namespace, 3, &running);
        cache.publish(SeqId(3), &running);
        let prompts = DeletedPrompts::new(vec![running.clone(), pinned.clone()], Vec::new());
        let forgotten = cache.forget(namespace, &prompts);
        assert!(forgotten.in_use > 0, "{forgotten:?}");
        cache.finish(SeqId(3), &running);
        assert_eq!(cache.forget(namespace, &prompts).in_use, 0);
        assert_eq!(cache.lookup(namespace, &running).tokens, 40);
        assert_eq!(cache.lookup(namespace, &pinned).tokens, 64, "its whole blocks");
        cache.check().unwrap();
    }
}
