//! `.pgpass`: passwords by host, port, database and user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A password file.
#[derive(Default)]
pub struct Passfile {
    text: String,
    /// Why it was not read, for the error when a password is missing.
    pub ignored: Option<String>,
}

impl Passfile {
    /// A file that cannot be read, or that others can read, is ignored, as in libpq.
    pub fn read(path: &Path) -> Passfile {
        let ignored = |why: &str| Passfile {
            text: String::new(),
            ignored: Some(format!("The password file {} was ignored: {why}.", path.display())),
        };
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Passfile::default(),
            Err(error) => ignored(&error.to_string()),
            Ok(file) if !file.is_file() => ignored("it is not a plain file"),
            Ok(file) if file.permissions().mode() & 0o077 != 0 => ignored("others can read it; run chmod 0600"),
            Ok(_) => match std::fs::read_to_string(path) {
                Ok(text) => Passfile { text, ignored: None },
                Err(error) => ignored(&error.to_string()),
            },
        }
    }

    /// The password of the first matching line.
    pub fn password(&self, host: &str, port: u16, database: &str, user: &str) -> Option<String> {
        let port = port.to_string();
        let wanted = [host, port.as_str(), database, user];
        self.text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .find_map(|line| {
                let fields = fields(line);
                let (password, place) = fields.split_last()?;
                let fits = |(field, wanted): (&Field, &&str)| field.is_star || field.text == **wanted;
                (place.len() == 4 && place.iter().zip(&wanted).all(fits)).then(|| password.text.clone())
            })
    }
}

struct Field {
    text: String,
    is_star: bool,
}

/// Five fields separated by colons; a backslash escapes the next character. The last field may contain colons.
fn fields(line: &str) -> Vec<Field> {
    let mut fields = vec![String::new()];
    let mut escaped_star = false;
    let mut stars = Vec::new();
    let mut letters = line.trim_end_matches(['\r', '\n']).chars();
    while let Some(letter) = letters.next() {
        let last = fields.len() == 5;
        let field = fields.last_mut().expect("there is always one");
        match letter {
            '\\' => {
                escaped_star = true;
                field.extend(letters.next());
            }
            ':' if !last => {
                stars.push(field == "*" && !escaped_star);
                escaped_star = false;
                fields.push(String::new());
            }
            letter => field.push(letter),
        }
    }
    stars.push(false);
    let pairs = fields.into_iter().zip(stars);
    pairs.map(|(text, is_star)| Field { text, is_star }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Passfile {
        Passfile {
            text: text.into(),
            ignored: None,
        }
    }

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let file = file("# mine\nother:*:*:ada:no\n*:5433:*:ada:second\n*:*:shop:ada:third\n*:*:*:*:last");

        assert_eq!(file.password("db", 5433, "shop", "ada").as_deref(), Some("second"));
        assert_eq!(file.password("db", 5432, "shop", "ada").as_deref(), Some("third"));
        assert_eq!(file.password("db", 5432, "shop", "bob").as_deref(), Some("last"));
    }

    #[test]
    fn a_backslash_takes_the_next_letter_as_it_is() {
        let file = file("a\\:b:*:\\*:ada:pa\\\\ss:word\nbroken line\n");

        assert_eq!(file.password("a:b", 1, "*", "ada").as_deref(), Some("pa\\ss:word"));
        assert_eq!(file.password("a:b", 1, "shop", "ada"), None);
    }
}
