//! Tests of the store.

use std::fs;

use super::*;

fn header(family: &str, arch: &str) -> Header {
    Header {
        family: family.into(),
        arch: arch.into(),
        rustc: "1.96.0".into(),
        llvm: "22.1.8".into(),
        builder: "0.1.0".into(),
        recipe: "--features topk".into(),
        sources: "sha256:00".into(),
    }
}

fn kernel(name: &str, text: &str) -> Kernel {
    Kernel { name: name.into(), text: text.into() }
}

fn content(family: &str, arch: &str, kernels: &[(&str, &str)]) -> Content {
    let kernels = kernels.iter().map(|(name, text)| kernel(name, text)).collect();
    Content { header: header(family, arch), kernels }
}

/// The names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    files(folder).unwrap().into_keys().collect()
}

/// What stands in a folder.
fn read_back(folder: &Path) -> Content {
    let (index, kernels) = kernels(folder).unwrap();
    Content { header: index.header, kernels }
}

#[test]
fn what_is_written_is_read_back_in_the_order_of_names() {
    let store = tempfile::tempdir().unwrap();
    let topk = store.path().join("topk.sm_80");
    let written = write(store.path(), &[content("topk", "sm_80", &[("b", "two"), ("a", "one\n")])]).unwrap();
    assert_eq!(written, std::slice::from_ref(&topk));
    let (index, kernels) = super::kernels(&topk).unwrap();
    assert_eq!(kernels, [kernel("a", "one\n"), kernel("b", "two")]);
    let sha256 = "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806";
    assert_eq!(index.header, header("topk", "sm_80"));
    assert_eq!(index.entries[0], Listed { name: "a".into(), bytes: 4, sha256: sha256.into() });

    let three = content("topk", "sm_80", &[("b", "three")]);
    write(store.path(), std::slice::from_ref(&three)).unwrap();
    assert_eq!(super::kernels(&topk).unwrap().1, [kernel("b", "three")]);
    assert_eq!(names(&topk), [TEXTS, INDEX]);
    // A header alone leaves the texts as they are.
    let texts = fs::metadata(topk.join(TEXTS)).unwrap().modified().unwrap();
    let header = Header { sources: "sha256:01".into(), ..header("topk", "sm_80") };
    write(store.path(), &[Content { header, ..three }]).unwrap();
    assert_eq!(fs::metadata(topk.join(TEXTS)).unwrap().modified().unwrap(), texts);
    assert_eq!(super::index(&topk).unwrap().header.sources, "sha256:01");

    let error = write(store.path(), &[content("topk", "ampere", &[])]).unwrap_err();
    assert!(error.to_string().contains("ampere"), "{error}");
}

#[test]
fn the_architectures_of_a_family_share_a_stream_and_are_written_alone_too() {
    let line = "mul.f32 %f3, %f1, %f2; // a line that both have\n";
    let text = |last: &str| format!("{}{last}", line.repeat(50));
    // sm_100 comes after sm_90, not where its name would be.
    let archs = ["sm_75", "sm_90", "sm_90a", "sm_100"];
    let of = |arch: &str, what: &str| content("norm", arch, &[("a", &text(arch)), ("b", &text(what))]);
    let store = tempfile::tempdir().unwrap();
    let folder = |arch: &str| store.path().join(format!("norm.{arch}"));
    let all: Vec<Content> = archs.iter().map(|arch| of(arch, "old")).collect();
    // Another family, whose name begins with this one's, and what is no store.
    let other = content("norm_cluster", "sm_90", &[("c", "three")]);
    write(store.path(), std::slice::from_ref(&other)).unwrap();
    fs::create_dir(store.path().join("norm.sm_80")).unwrap();
    fs::write(store.path().join("norm.txt"), "").unwrap();

    write(store.path(), &all).unwrap();
    let stream = fs::read(folder("sm_75").join(TEXTS)).unwrap();
    assert_eq!(names(&folder("sm_75")), [TEXTS, INDEX]);
    for (arch, content) in archs.iter().zip(&all) {
        assert_eq!(names(&folder(arch)).len(), if *arch == "sm_75" { 2 } else { 1 }, "{arch}");
        assert_eq!(read_back(&folder(arch)), *content);
        let text = read(&folder(arch).join("b.ptx")).unwrap();
        assert_eq!(text, content.kernels[1].text);
    }
    assert!(packed_otherwise(store.path(), "norm").unwrap().is_empty());

    // One after the other in any order, and each alone: the bytes are the same.
    for order in [[3, 2, 1, 0], [1, 0, 3, 2], [0, 1, 2, 3]] {
        let again = tempfile::tempdir().unwrap();
        for &at in &order {
            write(again.path(), &all[at..=at]).unwrap();
            assert_eq!(read_back(&again.path().join(format!("norm.{}", archs[at]))), all[at], "{order:?}");
        }
        assert_eq!(fs::read(again.path().join("norm.sm_75").join(TEXTS)).unwrap(), stream, "{order:?}");
        for arch in &archs[1..] {
            assert_eq!(names(&again.path().join(format!("norm.{arch}"))), [INDEX], "{order:?}");
        }
    }
    for at in 0..archs.len() {
        let new = of(archs[at], "new");
        write(store.path(), std::slice::from_ref(&new)).unwrap();
        for (other, arch) in archs.iter().enumerate() {
            let expected = if other == at { &new } else { &all[other] };
            assert_eq!(read_back(&folder(arch)), *expected, "{arch} after {}", archs[at]);
        }
        write(store.path(), &all[at..=at]).unwrap();
        assert_eq!(fs::read(folder("sm_75").join(TEXTS)).unwrap(), stream);
    }
    assert_eq!(read_back(&store.path().join("norm_cluster.sm_90")), other);
}

#[test]
fn folders_with_streams_of_their_own_are_read_and_packed_together() {
    let store = tempfile::tempdir().unwrap();
    let archs = ["sm_80", "sm_89", "sm_90"];
    let all = archs.map(|arch| content("norm", arch, &[("a", "one"), ("b", arch)]));
    // sm_80 has a stream, which holds sm_89's texts too, and so has sm_90.
    for (folders, kept) in [(&all[..2], [0, 1]), (&all[2..], [2, 2])] {
        let (indices, stream) = pack(folders);
        let first = store.path().join(format!("norm.{}", archs[kept[0]]));
        for (index, arch) in indices.iter().zip(&archs[kept[0]..]) {
            let folder = store.path().join(format!("norm.{arch}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(INDEX), index.to_text()).unwrap();
        }
        fs::write(first.join(TEXTS), stream).unwrap();
    }
    let folder = |arch: &str| store.path().join(format!("norm.{arch}"));
    for (arch, content) in archs.iter().zip(&all) {
        assert_eq!(read_back(&folder(arch)), *content);
    }
    let stale = packed_otherwise(store.path(), "norm").unwrap();
    assert_eq!(stale, [folder("sm_80").join(TEXTS), folder("sm_90").join(TEXTS)]);
    fs::write(folder("sm_89").join("a.ptx.z"), "").unwrap();
    repack(store.path(), "norm").unwrap();
    assert!(packed_otherwise(store.path(), "norm").unwrap().is_empty());
    for (arch, content) in archs.iter().zip(&all) {
        assert_eq!(read_back(&folder(arch)), *content);
    }
    assert_eq!(names(&folder("sm_80")), [TEXTS, INDEX]);
    assert_eq!((names(&folder("sm_89")), names(&folder("sm_90"))), (vec![INDEX.into()], vec![INDEX.into()]));
}

#[test]
fn an_entry_is_read_by_a_path_unless_a_file_has_it() {
    let store = tempfile::tempdir().unwrap();
    let path = |name: &str| store.path().join("topk.sm_80").join(name);
    write(store.path(), &[content("topk", "sm_80", &[("a", "one"), ("b", "two")])]).unwrap();
    assert_eq!(read(&path("b.ptx")).unwrap(), "two");
    for name in ["c.ptx", "b", "b.txt", "none/b.ptx"] {
        let error = read(&path(name)).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    fs::write(path("b.ptx"), "three").unwrap();
    assert_eq!(read(&path("b.ptx")).unwrap(), "three");
    fs::write(path("b.ptx"), [0xff]).unwrap();
    assert!(read(&path("b.ptx")).unwrap_err().to_string().contains("no text"));

    // The name of a folder with a stream of its own says nothing.
    fs::rename(store.path().join("topk.sm_80"), store.path().join("mine")).unwrap();
    assert_eq!(read(&store.path().join("mine/a.ptx")).unwrap(), "one");
}

#[test]
fn damage_is_an_error_that_names_the_file() {
    let store = tempfile::tempdir().unwrap();
    let [topk, later] = ["sm_80", "sm_90"].map(|arch| store.path().join(format!("topk.{arch}")));
    let texts = topk.join(TEXTS);
    let text = "a text that is long enough to be damaged in the middle";
    let of = |arch: &str, b: &str| content("topk", arch, &[("a", text), ("b", b)]);
    write(store.path(), &[of("sm_80", "two"), of("sm_90", "2.0")]).unwrap();
    let whole = fs::read(&texts).unwrap();
    let mut cases: Vec<Vec<u8>> = vec![whole[..whole.len() / 2].to_vec(), b"no stream".to_vec(), vec![]];
    for byte in 0..whole.len() {
        // Of the header, the window may be another: the text is the same. The first byte of the range coder says nothing.
        if !(1..5).contains(&byte) && byte != 13 {
            let mut damaged = whole.clone();
            damaged[byte] ^= 0x04;
            cases.push(damaged);
        }
    }
    for case in cases {
        fs::write(&texts, &case).unwrap();
        for folder in [&topk, &later] {
            let error = read(&folder.join("a.ptx")).unwrap_err().to_string();
            assert!(error.contains(&texts.display().to_string()), "{error}");
        }
    }
    // What is to keep its texts has none; what is not, does not matter.
    let error = write(store.path(), &[of("sm_80", "three")]).unwrap_err().to_string();
    assert!(error.contains(&texts.display().to_string()), "{error}");
    write(store.path(), &[of("sm_90", "2.0"), of("sm_80", "two")]).unwrap();
    assert_eq!(fs::read(&texts).unwrap(), whole);

    for (contents, reason) in [
        (vec![of("sm_80", "two")], "more than the 57 bytes that are listed by the index of topk.sm_80"),
        (
            vec![of("sm_80", "two"), content("topk", "sm_90", &[("a", text)])],
            "more than the 111 bytes that are listed by the index of topk.sm_80 and of topk.sm_90",
        ),
        (
            vec![of("sm_80", "two"), of("sm_90", "four")],
            "the 4 bytes of `b` end, which the index of topk.sm_90",
        ),
        (
            vec![of("sm_80", "Two"), of("sm_90", "2.0")],
            "`b` has another SHA-256 than the index of topk.sm_80",
        ),
        (
            vec![of("sm_80", "two"), of("sm_90", "2.1")],
            "`b` has another SHA-256 than the index of topk.sm_90",
        ),
    ] {
        let error = unpack(&pack(&contents).0, &whole).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let listed = |bytes| Listed { name: "a".into(), bytes, sha256: "00".into() };
    let index = |entries| Index { header: header("topk", "sm_80"), entries };
    let huge = vec![listed(usize::MAX), listed(1)];
    for indices in [vec![index(huge)], vec![index(vec![listed(usize::MAX)]), index(vec![listed(1)])]] {
        let error = unpack(&indices, &whole).unwrap_err();
        assert!(error.contains("more bytes than there can be"), "{error}");
    }

    // A folder without the one that has its texts.
    fs::rename(&topk, store.path().join("elsewhere")).unwrap();
    let error = read(&later.join("a.ptx")).unwrap_err().to_string();
    assert!(error.contains("topk.sm_90/entries.lzma") && error.contains("earlier architecture"), "{error}");
    fs::rename(store.path().join("elsewhere"), &topk).unwrap();
    fs::remove_file(&texts).unwrap();
    let error = read(&later.join("a.ptx")).unwrap_err().to_string();
    assert!(error.contains("topk.sm_80/entries.lzma"), "{error}");

    // An index that is none makes the other folders of its stream unreadable too, and is what is named.
    fs::write(&texts, &whole).unwrap();
    let head = header("topk", "sm_80");
    for index in ["", "a 1 00\n", &format!("{head}\na\n"), &format!("{head}\na 1 00 x\n")] {
        fs::write(topk.join(INDEX), index).unwrap();
        for folder in [&topk, &later] {
            let error = read(&folder.join("a.ptx")).unwrap_err().to_string();
            assert!(error.contains(INDEX) && error.contains("it is no index"), "{error}");
        }
    }
    fs::write(topk.join("a.ptx.z"), "").unwrap();
    let error = read(&topk.join("a.ptx")).unwrap_err().to_string();
    assert!(error.contains("an earlier version") && error.contains("`a.ptx.z`"), "{error}");
}

#[test]
fn an_index_is_read_as_it_is_written() {
    let (indices, _) = pack(&[content("topk", "sm_80", &[("b", "two"), ("a", "")])]);
    assert_eq!(Index::parse(&indices[0].to_text()), indices.into_iter().next());
}
