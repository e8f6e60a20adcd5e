//! Pulls a model: fetches its files first, and writes the manifest last.

use std::path::PathBuf;

use super::{Shelf, now_s, open_lock, used::Used};
use crate::{
    HubSpec, Kind, Manifest, ModelName, ModelSource, Progress, ShelfError, ShelfFile,
    download::{Wanted, Watch, download},
    hub::{ModelFiles, RemoteFile, choose, names},
    manifest::HUB_DIRECTORY,
};

/// Maximum number of rounds of fetching, if files vanish before they are named.
const ROUNDS_MAX: usize = 3;

impl Shelf {
    /// Fetches a model and gives it a name; of a model that already has the name, only newer files. A source that
    /// is a path is [added](Shelf::add).
    ///
    /// Resumes partial downloads of earlier pulls. Returns when all files are present with the checksums that the
    /// hub states; until then the name keeps its former meaning.
    pub fn pull(
        &self,
        source: &ModelSource,
        name: &ModelName,
        progress: &dyn Progress,
    ) -> Result<Manifest, ShelfError> {
        let spec = match source {
            ModelSource::Path(path) => return self.add(path, name),
            ModelSource::Hub(spec) => spec,
        };
        self.check_owner(name, source)?;
        // Held until the files have their name.
        let lock = open_lock(&self.hub_dir())?;
        lock.lock_shared().map_err(ShelfError::io(&self.hub_dir()))?;
        let repository = self.hub.list(spec, progress)?;
        // The memory that is free now says nothing against a file that is here already.
        let former = self.read(name)?.and_then(|former| path_in_repository(&former, spec));
        let room = (former.as_deref(), self.memory_bytes);
        let chosen = choose(spec, &repository.files, room, progress)?;
        let fetch =
            Fetch { shelf: self, spec, commit: repository.commit.as_deref(), files: &repository.files };
        let mut round = 1;
        loop {
            let manifest = fetch.run(&chosen, name, progress)?;
            match self.name(manifest) {
                // Another process has removed a name together with a file that this one had found.
                Err(ShelfError::MissingFile { .. }) if round < ROUNDS_MAX => round += 1,
                named => return named,
            }
        }
    }

    /// Gives the name to present files, and removes those that only its former model used.
    fn name(&self, manifest: Manifest) -> Result<Manifest, ShelfError> {
        let _lock = self.lock_names()?;
        self.check_owner(&manifest.name, &manifest.source)?;
        self.path(&manifest)?;
        let former = self.read(&manifest.name)?;
        self.write(&manifest)?;
        if let Some(former) = former {
            self.remove_unused(&former)?;
        }
        Ok(manifest)
    }
}

/// The path of a downloaded model within its repository, behind the directory of the revision.
fn path_in_repository(manifest: &Manifest, spec: &HubSpec) -> Option<String> {
    let below = manifest.model.strip_prefix(HUB_DIRECTORY).ok()?.strip_prefix(spec.repository()).ok()?;
    let mut parts = below.components();
    parts.next()?;
    parts.as_path().to_str().map(str::to_owned)
}

/// A repository whose files are fetched.
struct Fetch<'a> {
    shelf: &'a Shelf,
    spec: &'a HubSpec,
    commit: Option<&'a str>,
    /// The files of the repository.
    files: &'a [RemoteFile],
}

impl Fetch<'_> {
    /// Fetches the chosen files; returns their manifest.
    fn run(
        &self,
        chosen: &ModelFiles<'_>,
        name: &ModelName,
        progress: &dyn Progress,
    ) -> Result<Manifest, ShelfError> {
        let told: Vec<_> = chosen.files.iter().map(|file| (file.path.clone(), file.size())).collect();
        progress.begin(&told);
        let mut files = Vec::new();
        for (index, file) in chosen.files.iter().enumerate() {
            files.push(self.file(file, Watch { progress, file: index })?);
        }
        let model = chosen.model.as_ref().map_or_else(|| self.directory(), |model| self.path_of(model));
        Ok(Manifest {
            name: name.clone(),
            kind: Kind::of(&self.shelf.dir.join(&model)),
            source: ModelSource::Hub(self.spec.clone()),
            revision: self.commit.map(str::to_owned),
            added_s: now_s(),
            model: model.into(),
            files,
        })
    }

    /// Fetches a file.
    fn file(&self, file: &RemoteFile, watch: Watch<'_>) -> Result<ShelfFile, ShelfError> {
        let path = self.path_of(&file.path);
        let repository = self.spec.repository();
        let wanted = Wanted {
            what: format!("hf:{repository}/{}", file.path),
            url: self.shelf.hub.file_url(self.spec, self.revision(), &file.path),
            target: self.shelf.dir.join(&path),
            size: file.size(),
            sha256: file.sha256(),
            is_pinned: self.commit.is_some(),
        };
        match download(&self.shelf.hub, &wanted, &self.earlier(file)?, watch) {
            Ok((size, sha256)) => Ok(ShelfFile { path, size, sha256 }),
            Err(ShelfError::NotFound { what, url, .. }) => {
                let remedy = format!("the repository lists {}", names(self.files));
                Err(ShelfError::NotFound { what, url, remedy })
            }
            Err(error) => Err(error),
        }
    }

    /// Files of the shelf that may have the same content: named ones with its checksum, and the path that earlier
    /// versions of kvik, which ignored commits, used for it.
    fn earlier(&self, file: &RemoteFile) -> Result<Vec<PathBuf>, ShelfError> {
        let Some(sha256) = file.sha256() else { return Ok(Vec::new()) };
        let listing = self.shelf.list()?;
        let same = |known: &&ShelfFile| known.sha256.as_ref() == Some(&sha256);
        let named = listing.manifests.iter().flat_map(|manifest| &manifest.files).filter(same);
        let unnamed = format!("{HUB_DIRECTORY}/{}/{}", self.spec.repository(), file.path);
        let paths = named.map(|file| file.path.clone()).chain([unnamed]);
        Ok(paths.map(|path| self.shelf.dir.join(path)).collect())
    }

    /// The commit, or the branch if the hub does not state the commit.
    fn revision(&self) -> &str {
        self.commit.or(self.spec.revision.as_deref()).unwrap_or("main")
    }

    /// The directory of the revision, relative to the shelf's.
    fn directory(&self) -> String {
        let revision = self.revision().replace('/', "--");
        format!("{HUB_DIRECTORY}/{}/{revision}", self.spec.repository())
    }

    fn path_of(&self, file: &str) -> String {
        format!("{}/{file}", self.directory())
    }
}

impl Shelf {
    /// Removes files in the directory of downloads that no name uses: abandoned partial downloads, and files that
    /// were not named before a process was killed. A pull of the same model would have used them.
    ///
    /// # Errors
    /// [`ShelfError::Busy`] while another process downloads, and I/O errors.
    pub fn remove_leftovers(&self) -> Result<super::Removed, ShelfError> {
        let hub = self.hub_dir();
        let lock = open_lock(&hub)?;
        if lock.try_lock().is_err() {
            return Err(ShelfError::Busy { dir: self.dir.clone() });
        }
        let _lock = self.lock_names()?;
        let listing = self.list()?;
        let mut removed = super::Removed::default();
        if !listing.unreadable.is_empty() {
            return Ok(super::Removed { is_partial: true, ..removed });
        }
        let used = Used::of(&self.dir, &listing);
        for (path, bytes) in super::earlier::files_in(&hub)? {
            let relative = path.strip_prefix(&self.dir).ok().and_then(|path| path.to_str());
            let is_used = relative.is_some_and(|path| used.has(path));
            if is_used || path == hub.join(".lock") || std::fs::remove_file(&path).is_err() {
                continue;
            }
            self.remove_empty_parents(&path);
            removed.bytes += bytes;
            removed.files.push(path);
        }
        Ok(removed)
    }
}
