//! Looks up the longest stored prefix of a prompt.

use kvik_engine::store::remote::{Chain, RemoteDone};
use tokio::time::{Instant, timeout};

use super::search::Search;
use crate::error::Fault;
use crate::names::Key;
use crate::node::{Node, count};

/// Maximum number of blocks of a prompt that are looked up; those after them are computed.
const BLOCKS_MAX: usize = 4096;

/// Looks up a prompt and reports how many of its blocks were found; 0 after a fault.
pub(crate) async fn look_up(node: &Node, ticket: u64, chain: &Chain) {
    let blocks = match search(node, chain).await {
        Ok(blocks) => blocks,
        Err(fault) => {
            count(&node.counters.faults, 1);
            node.health.fault(&fault);
            0
        }
    };
    count(&node.counters.hits, usize::from(blocks > 0));
    node.done.push(RemoteDone::Found { ticket, blocks }, None);
}

async fn search(node: &Node, chain: &Chain) -> Result<usize, Fault> {
    let blocks = chain.blocks.len().min(BLOCKS_MAX);
    let keys: Vec<Key> = chain.blocks[..blocks].iter().map(|end| node.run(chain.owner, end)).collect();
    let width = node.backend.questions_max();
    let mut search = Search::new(blocks, node.run_max, width);
    if let Some(end) = last_known(node, &keys).filter(|_| blocks > width) {
        search.assume(end);
    }
    loop {
        let ends = search.next();
        // If the store went down in the meantime, nothing is found, which is not a fault.
        let Some(deadline) = node.health.deadline(0).filter(|_| !ends.is_empty()) else { break };
        let asked: Vec<Key> = ends.iter().map(|end| keys[end - 1]).collect();
        let since = Instant::now();
        let there = timeout(deadline, node.backend.exists(&asked)).await.map_err(|_| Fault::Late)??;
        node.health.answered(0, since.elapsed());
        remember(node, &asked, &there);
        search.answer(&ends, &there);
    }
    Ok(if node.health.is_up() { search.found() } else { 0 })
}

/// The last of the longest runs that existed according to the most recent information.
fn last_known(node: &Node, keys: &[Key]) -> Option<usize> {
    let known = node.known();
    let ends = (1..=keys.len() / node.run_max).rev().map(|run| run * node.run_max);
    ends.into_iter().find(|end| known.contains(&keys[end - 1]))
}

fn remember(node: &Node, keys: &[Key], there: &[bool]) {
    let mut known = node.known();
    for (key, &there) in keys.iter().zip(there) {
        match there {
            true => known.insert(*key, false),
            false => known.remove(key),
        }
    }
}
