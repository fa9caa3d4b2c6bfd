//! What is logged, in few words: of each list its first elements, and how many more there are.

use std::fmt;

/// So many elements of a list are shown.
const SHOWN: usize = 4;

/// As `Debug` writes it, but for the rest of long lists.
pub struct Brief<'a, T>(pub &'a T);

impl<T: fmt::Debug> fmt::Display for Brief<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shortened(&format!("{:?}", self.0)))
    }
}

impl<T: fmt::Debug> fmt::Debug for Brief<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is open, from the outermost on.
struct Open {
    /// A list, set or map, not a struct or tuple.
    is_list: bool,
    /// Elements that have ended.
    ended: usize,
}

impl Open {
    fn is_cut(&self) -> bool {
        self.is_list && self.ended >= SHOWN
    }
}

fn shortened(text: &str) -> String {
    let (mut short, mut open, mut before) = (String::new(), Vec::<Open>::new(), ' ');
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let is_shown = |open: &[Open]| !open.iter().any(Open::is_cut);
        match character {
            '"' => {
                let shown = is_shown(&open);
                let quoted = quoted(&mut characters);
                short.extend(shown.then(|| format!("\"{quoted}\"")));
            }
            '[' | '{' | '(' => {
                short.extend(is_shown(&open).then_some(character));
                // The braces of a struct stand behind its name.
                let is_named = before.is_alphanumeric() || before == '_';
                open.push(Open { is_list: character == '[' || character == '{' && !is_named, ended: 0 });
            }
            ']' | '}' | ')' => {
                let closed = open.pop();
                let rest = closed.filter(Open::is_cut).map(|list| list.ended + 1 - SHOWN);
                if is_shown(&open) {
                    short.extend(rest.map(|rest| format!(", … {rest} more")));
                    short.push(character);
                }
            }
            ',' => {
                if let Some(last) = open.last_mut() {
                    last.ended += 1;
                }
                short.extend(is_shown(&open).then_some(character));
            }
            other => short.extend(is_shown(&open).then_some(other)),
        }
        before = if character.is_whitespace() { before } else { character };
    }
    short
}

/// The rest of a string, behind its first quote; takes the last one, too.
fn quoted(characters: &mut std::str::Chars<'_>) -> String {
    let mut text = String::new();
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => {
                text.push(character);
                text.extend(characters.next());
            }
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Debug)]
    #[allow(dead_code, reason = "they are written")]
    struct Example {
        name: &'static str,
        list: Vec<u8>,
        pairs: Vec<(u8, Vec<u8>)>,
        map: BTreeMap<u8, u8>,
    }

    fn example(length: u8) -> Example {
        let list: Vec<u8> = (0..length).collect();
        let pairs = list.iter().map(|n| (*n, vec![1, 2])).collect();
        let map = list.iter().map(|n| (*n, *n)).collect();
        Example { name: "a, [b] \"c\"", list, pairs, map }
    }

    #[test]
    fn short_lists_are_as_they_are() {
        for length in 0..=4 {
            let example = example(length);
            assert_eq!(Brief(&example).to_string(), format!("{example:?}"));
        }
    }

    #[test]
    fn of_long_lists_the_first_elements_are_shown_and_the_rest_is_counted() {
        let wanted = r#"Example { name: "a, [b] \"c\"", list: [0, 1, 2, 3, … 3 more], pairs: [(0, [1, 2]), (1, [1, 2]), (2, [1, 2]), (3, [1, 2]), … 3 more], map: {0: 0, 1: 1, 2: 2, 3: 3, … 3 more} }"#;
        assert_eq!(Brief(&example(7)).to_string(), wanted);
        let lists = vec![vec![0; 100]; 100];
        let text = Brief(&lists).to_string();
        assert_eq!(text.matches("… 96 more").count(), 5, "{text}");
    }
}
