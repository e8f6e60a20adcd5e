//! Searches the hub for repositories with GGUF files.

use serde::Deserialize;

use super::{Asked, Hub, url};
use crate::{HubSpec, Progress, ShelfError};

/// Maximum size of an answer.
const ANSWER_MAX: u64 = 4 << 20;
/// Maximum characters of a word that is searched for.
const WORD_MAX: usize = 200;

/// A repository that a search has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRepository {
    /// The repository.
    pub source: HubSpec,
    /// Downloads, as the hub counts them.
    pub downloads: u64,
    /// Whether its files are only for those who accept its licence.
    pub is_gated: bool,
}

/// An entry of the hub's answer.
#[derive(Debug, Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    downloads: u64,
    /// `false`, or how access is granted.
    #[serde(default)]
    gated: serde_json::Value,
}

impl Hub {
    /// At most `count` repositories with GGUF files that match a word, the most downloaded first.
    pub fn search(
        &self,
        word: &str,
        count: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<FoundRepository>, ShelfError> {
        self.retried(progress, || self.search_once(word, count))
    }

    fn search_once(&self, word: &str, count: usize) -> Result<Vec<FoundRepository>, ShelfError> {
        let word: String = word.chars().take(WORD_MAX).collect();
        let word = url::encoded(&word);
        let query = format!("search={word}&filter=gguf&sort=downloads&direction=-1&limit={count}");
        let url = format!("{}/api/models?{query}", self.endpoint);
        let asked = Asked {
            url: &url,
            what: "the search",
            remedy: "this hub may have none; name the repository, as hf:owner/repo",
            page: &self.endpoint,
        };
        let entries: Vec<Entry> = self.get_json(&asked, ANSWER_MAX)?;
        // A name that no pull would take is not shown either.
        let found = entries.into_iter().filter_map(|Entry { id, downloads, gated }| {
            let is_gated = gated.as_bool() != Some(false) && !gated.is_null();
            let source: HubSpec = id.parse().ok()?;
            (source.repository() == id).then_some(FoundRepository { source, downloads, is_gated })
        });
        Ok(found.take(count).collect())
    }
}
