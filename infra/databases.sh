#!/bin/sh
# Run once, on PostgreSQL's empty volume: one user and one database for the registry, and one of each for MLflow.
set -eu

for name in bcd mlflow; do
  case $name in
    bcd) password=$BCD_DATABASE_PASSWORD ;;
    mlflow) password=$MLFLOW_DATABASE_PASSWORD ;;
  esac
  PASSWORD=$password psql --username="${POSTGRES_USER:-postgres}" --dbname=postgres --no-psqlrc --quiet \
    --set=ON_ERROR_STOP=1 --set=name="$name" <<'SQL'
\getenv password PASSWORD
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;
SQL
done
