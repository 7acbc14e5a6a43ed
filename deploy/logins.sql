-- Run once, when the database is created: the roles, and a login for each. Change the passwords for production.
create role bugle_enqueuer nologin;
create role bugle_worker nologin;
create role bugle_observer nologin;
create role bugle_viewer nologin;
create role bugle_operator nologin;

create role app login password 'app' in role bugle_enqueuer;
-- the API of the worker uses its login
create role worker login password 'worker' in role bugle_worker, bugle_viewer, bugle_operator;
create role support login password 'support' in role bugle_viewer, bugle_operator;
