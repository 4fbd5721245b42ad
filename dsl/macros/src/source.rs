//! Which function a kernel was made of: a number that the host's type and the device's entry both carry.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A hash of tokens (FNV-1a, 64 bits). Spaces, comments and documentation do not change it, nor do the invisible groups that macros
/// put around their fragments: the host's and the device's compiler may hand those over differently.
pub(crate) fn fingerprint(tokens: impl IntoIterator<Item = TokenStream>) -> u64 {
    tokens.into_iter().fold(0xcbf2_9ce4_8422_2325, hash_all)
}

fn hash_all(hash: u64, tokens: TokenStream) -> u64 {
    let mut hash = hash;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        hash = match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                hash_text(hash_all(hash_text(hash, open), group.stream()), close)
            }
            TokenTree::Punct(punct)
                if punct.as_char() == '#' && tokens.next_if(is_documentation).is_some() =>
            {
                hash
            }
            other => hash_text(hash, &other.to_string()),
        };
    }
    hash
}

/// Whether what follows a `#` makes it documentation.
fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    group.delimiter() == Delimiter::Bracket
        && matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

/// One token's text. Its end counts too, so that `a b` is not `ab`; a token without text is none.
fn hash_text(hash: u64, text: &str) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    if text.is_empty() {
        return hash;
    }
    text.bytes().chain([0]).fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    fn of(text: &str) -> u64 {
        fingerprint([text.parse().expect("these are tokens")])
    }

    #[test]
    fn what_the_compiler_makes_of_a_function_changes_it() {
        let first = of("fn f(x: &T) { g(x, 1) }");
        for other in [
            "unsafe fn f(x: &T) { g(x, 1) }",
            "fn f(x: &U) { g(x, 1) }",
            "fn f(x: &T) { g(x, 2) }",
            "fn f(x: &T) { g(x); 1 }",
            "fn f(x: &T) { g(x 1) }",
            "fn f(x: &T) { gx(, 1) }",
        ] {
            assert_ne!(of(other), first, "{other}");
        }
    }

    #[test]
    fn spaces_comments_and_documentation_do_not() {
        let first = of("fn f(x: &T) { const A: u32 = 1; g(x, -1) }");
        assert_eq!(of("fn f(x:&T){/* why */ /// What.\nconst A:u32=1;g(x,- 1)}"), first);
        assert_eq!(of("fn f(x: &T) { #[doc = r\"What.\"] const A: u32 = 1; g(x, -1) }"), first);
        assert_ne!(of("fn f(x: &T) { #[cfg(a)] const A: u32 = 1; g(x, -1) }"), first);
    }

    #[test]
    fn invisible_groups_do_not() {
        use proc_macro2::{Delimiter, Group, TokenTree};
        let grouped = TokenTree::Group(Group::new(Delimiter::None, "a + b".parse().expect("tokens")));
        assert_eq!(fingerprint([[grouped].into_iter().collect()]), of("a + b"));
    }
}
