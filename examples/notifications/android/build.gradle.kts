plugins {
    id("com.android.application") version "8.7.3"
    id("org.jetbrains.kotlin.android") version "2.1.0"
}

android {
    namespace = "dev.kvik.notifications"
    compileSdk = 35

    defaultConfig {
        applicationId = "dev.kvik.notifications"
        minSdk = 26
        targetSdk = 35
        versionCode = 1
        versionName = "1"
    }

    // The classifier is the one that runs on the JVM; the model is the one in the repository.
    sourceSets["main"].kotlin.srcDir("../core")
    sourceSets["main"].assets.srcDir("../../../models/tiny")

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }

    // The model is mapped where it lies in the package, so it must not be compressed.
    androidResources {
        noCompress += "gguf"
    }
}

kotlin {
    jvmToolchain(17)
}

dependencies {
    implementation(project(":kvik"))
    implementation("androidx.activity:activity-ktx:1.9.3")
    implementation("androidx.lifecycle:lifecycle-runtime-ktx:2.8.7")
}
