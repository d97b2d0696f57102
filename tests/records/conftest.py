"""The databases that the tests of records run on: a new SQLite file, or a new database on a
PostgreSQL server, which is $TILESMITH_TEST_POSTGRES or a private one.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tilesmith.testing.databases")


def _run(command: list[str], user: str | None) -> None:
    subprocess.run(
        command, user=user, check=True, cwd="/", capture_output=True, timeout=600, text=True
    )


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server, without the name of a database."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if given := os.environ.get("TILESMITH_TEST_POSTGRES"):
        yield given
        return
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL: set TILESMITH_TEST_POSTGRES, or install it (apt: postgresql)")
    tools, user = found[-1].parent, None
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="tilesmith-pg-"))  # pytest's own is closed to others
    if user is not None:
        shutil.chown(folder, user)
    folder.chmod(0o755)
    data = folder / "data"
    # A socket and no port: nothing to collide with. A test server need not survive a power cut.
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    try:
        _run([f"{tools}/initdb", "-D", f"{data}", "-U", "tester", "-A", "trust", "-N"], user)
        log = ["-l", f"{folder}/log"]
        _run([f"{tools}/pg_ctl", "-D", f"{data}", *log, "-w", "-o", options, "start"], user)
        try:
            yield f"postgresql://tester@/postgres?host={folder}"
        finally:
            _run([f"{tools}/pg_ctl", "-D", f"{data}", "-m", "immediate", "stop"], user)
    finally:
        # Some ten thousand files, which on a busy disk take a minute: nobody waits for that.
        subprocess.Popen(["rm", "-rf", str(folder)], start_new_session=True)


@pytest.fixture(scope="session")
def new_postgres(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes an empty database and gives its URL."""
    import sqlalchemy as sa

    url = sa.make_url(postgres_server).set(drivername="postgresql+psycopg")
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    made: list[str] = []
    numbers = count()

    def make() -> str:
        name = f"tilesmith_test_{os.getpid()}_{next(numbers)}"
        with admin.connect() as c:
            c.exec_driver_sql(f"CREATE DATABASE {name}")
        made.append(name)
        return url.set(drivername="postgresql", database=name).render_as_string(False)

    yield make
    with admin.connect() as c:
        for name in made if "TILESMITH_TEST_POSTGRES" in os.environ else ():  # ours goes as a whole
            c.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the place of a new, empty database at each call."""
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("new_postgres")
        return make
    numbers = count()
    return lambda: str(tmp_path / f"records{next(numbers)}.db")
