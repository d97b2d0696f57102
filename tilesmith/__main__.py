"""`python -m tilesmith` is the command line."""

from tilesmith.cli.main import app

if __name__ == "__main__":
    app(prog_name="tilesmith")
