//! Rows of results, as the benches make and write them.

#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::measurement::Measurement;
use crate::provenance::Provenance;

/// `value`, rounded to a whole number of which `parts` make 1.
pub(super) fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Writes a file of rows. It is replaced as a whole, so that whatever interrupts this leaves what was there.
pub(super) fn write(path: &Path, rows: impl IntoIterator<Item: Serialize>) -> Result<()> {
    let write = || -> Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = &mut tempfile::Builder::new();
        // Temporary files are their owner's alone, but this one stays.
        #[cfg(unix)]
        {
            file = file.permissions(PermissionsExt::from_mode(0o666));
        }
        let mut file = file.tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let mut writer = csv::Writer::from_writer(file.as_file_mut());
        rows.into_iter().try_for_each(|row| writer.serialize(row))?;
        writer.flush()?;
        drop(writer);
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("writing {}", path.display()))
}

impl Measurement {
    /// A row of `suite` that says nothing but where it comes from.
    pub(super) fn of(provenance: &Provenance, suite: &str) -> Self {
        Self {
            gpu: provenance.gpu.clone(),
            driver: provenance.driver.clone(),
            commit: provenance.commit.clone(),
            command: provenance.command.clone(),
            suite: suite.into(),
            clock_mhz: provenance.clock_mhz,
            ceiling_tbps: provenance.ceiling_tbps,
            libraries: provenance.libraries.join(", "),
            ..Self::default()
        }
    }

    /// The row with our time in microseconds.
    pub(super) fn timed(self, microseconds: f64) -> Self {
        Self { median_us: rounded(microseconds, 1e3), ..self }
    }

    /// The row beside a peer's time, ours being `microseconds`.
    pub(super) fn beside(&self, microseconds: f64, peer: &str, peer_us: f64) -> Self {
        Self {
            peer: peer.into(),
            peer_us: Some(rounded(peer_us, 1e3)),
            ratio: Some(rounded(peer_us / microseconds, 1e4)),
            ..self.clone()
        }
    }

    /// The row beside each of the baselines; as it is if there are none.
    pub(super) fn beside_each(self, microseconds: f64, peers: &[(String, f64)]) -> Vec<Self> {
        if peers.is_empty() {
            return vec![self];
        }
        peers.iter().map(|(name, time)| self.beside(microseconds, name, *time)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::write;
    use crate::measurement::Measurement;

    #[test]
    fn a_row_stands_once_beside_each_peer_or_alone() {
        let row = Measurement { operation: "linear".into(), ..Measurement::default() }.timed(2.00049);
        assert_eq!(row.median_us, 2.0);
        let alone = row.clone().beside_each(2.0, &[]);
        assert_eq!(alone, std::slice::from_ref(&row));
        let rows = row.beside_each(2.0, &[("a".into(), 3.0), ("b".into(), 1.0)]);
        let told: Vec<_> = rows.iter().map(|row| (row.peer.as_str(), row.peer_us, row.ratio)).collect();
        assert_eq!(told, [("a", Some(3.0), Some(1.5)), ("b", Some(1.0), Some(0.5))]);
    }

    #[test]
    fn files_are_read_as_they_were_written_and_may_lack_what_came_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.csv");
        let row = Measurement { libraries: "a 1.2".into(), bytes: Some(7.0), ..Measurement::default() };
        write(&path, [row.clone(), Measurement::default()]).expect("the folder is there");
        let read = |path| {
            let rows = csv::Reader::from_path(path).expect("the file is there").into_deserialize();
            rows.collect::<Result<Vec<Measurement>, _>>().expect("rows")
        };
        assert_eq!(read(&path), [row.clone(), Measurement::default()]);
        let text = std::fs::read_to_string(&path).expect("the file is there");
        let earlier: String =
            text.lines().filter_map(|line| Some(line.rsplit_once(',')?.0.to_owned() + "\n")).collect();
        std::fs::write(&path, earlier).expect("the folder is there");
        let without = Measurement { libraries: String::new(), ..row.clone() };
        assert_eq!(read(&path), [without, Measurement::default()]);
        assert!(write(&folder.path().join("none").join("rows.csv"), [row]).is_err());
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.csv");
        let read = || std::fs::read_to_string(&path).expect("the file is there");
        write(&path, [[1, 2], [3, 4]]).expect("the folder is there");
        assert_eq!(read(), "1,2\n3,4\n");
        write(&path, [vec![5, 6], vec![7]]).expect_err("rows of different lengths");
        assert_eq!(read(), "1,2\n3,4\n");
        write(&path, [[5, 6]]).expect("the folder is there");
        assert_eq!(read(), "5,6\n");
        assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1, "nothing temporary is left");
        // Others may read it as any file that is made here.
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").expect("the folder is there");
        let permissions = |path| std::fs::metadata(path).expect("the file is there").permissions();
        assert_eq!(permissions(&path), permissions(&plain));
    }
}
